"""Tables: facts about a dump as columns and rows of values, before anything decides how they look."""
