package health

// StoreOf shares a table that a test has made.
func StoreOf(t *Table) *Store { return &Store{table: t} }
