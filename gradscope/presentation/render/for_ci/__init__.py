"""CI has what systems of continuous integration read: annotations of source lines, and cases of tests."""
