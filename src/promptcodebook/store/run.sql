CREATE TABLE header (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    step INTEGER,
    light BLOB NOT NULL
);
CREATE INDEX events_by_kind ON events (kind, step);
CREATE UNIQUE INDEX one_event_a_step ON events (step) WHERE kind = 'stepped';
-- Apart from `events`, so that the fold reads no page of it.
CREATE TABLE bulk (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL);
