-- A rowid table with a unique index: WITHOUT ROWID is three times slower at 2 kB a row.
CREATE TABLE replies (id INTEGER PRIMARY KEY, key BLOB NOT NULL, reply BLOB NOT NULL);
CREATE UNIQUE INDEX replies_by_key ON replies (key);
