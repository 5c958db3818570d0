-- What is booked already of what a shard has cost at a place, as JSON.
CREATE TABLE shards (place TEXT PRIMARY KEY, booked TEXT NOT NULL);
