"""Systems of continuous integration read annotations of source lines (`github`) and cases of tests (`junit`)."""
