package containers

// Starting has a process be starting until started is called.
func Starting() (started func()) {
	relatives.starting.RLock()
	return relatives.starting.RUnlock
}
