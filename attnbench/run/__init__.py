"""Cases become records, and none is lost. In: a suite. Out: a run folder, and the `Run` that reads it."""
