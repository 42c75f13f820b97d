package doctor

import "golang.org/x/sys/unix"

// synchronized reports whether somebody, such as NTP, sets the clock.
func synchronized() bool {
	var t unix.Timex // asks, and changes nothing
	state, err := unix.Adjtimex(&t)
	return err == nil && state != unix.TIME_ERROR
}
