package setting

import "time"

// MessageRate is the lowest rate, in bytes per second, at which a message must arrive, from clients
// and containers alike: an incomplete message holds memory.
const MessageRate = 16 << 10

// Allowance returns how long n bytes may take to arrive: first, plus a second for each MessageRate
// bytes.
func Allowance(first time.Duration, n int64) time.Duration {
	return first + time.Duration(n/MessageRate)*time.Second
}
