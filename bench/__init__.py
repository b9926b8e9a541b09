"""Speed and size, beside a raw loop and real peers in the same run: `make bench` writes RESULTS.md."""
