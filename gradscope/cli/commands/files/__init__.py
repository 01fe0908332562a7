"""Commands about the file of a dump, and not what it says: `verify` reads all of it, `recover` saves what is whole."""
