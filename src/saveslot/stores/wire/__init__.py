"""What the stores on a server share: batches, connection pool, deadlines, metrics."""
