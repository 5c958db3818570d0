-- `mark` identifies the question: a later answer replaces the earlier one.
CREATE TABLE effects (id INTEGER PRIMARY KEY, mark TEXT NOT NULL UNIQUE, effect BLOB NOT NULL);
