package access

import "time"

// An Arrival charges the memory of one request that is still arriving to its payers. It counts in
// BytesInFlight, and takes nothing from a rate: [Use.Begin] charges the request once it is
// complete. The zero Arrival has charged nothing. Whoever calls Hold must call End.
type Arrival struct {
	payers Payers
	bytes  int64
}

// Hold sets the memory of the request to that many bytes. After an error it holds as much as
// before. As with Begin, a payer with nothing else in flight may have one request of any size.
func (a *Arrival) Hold(of Payers, bytes int64) error {
	more := bytes - a.bytes
	if a.bytes == 0 {
		a.payers = Payers{}
		for i, payer := range of {
			if _, pays := payer.due(); pays {
				a.payers[i] = payer
			}
		}
	}
	for i, payer := range a.payers {
		if payer == nil {
			continue
		}
		if err := payer.arrive(more, bytes); err != nil {
			for _, before := range a.payers[:i] {
				if before != nil {
					before.arriving.Add(-more)
				}
			}
			return err
		}
	}
	a.bytes = bytes
	return nil
}

// End returns what Hold has charged. It may be called again.
func (a *Arrival) End() {
	for _, payer := range a.payers {
		if payer != nil {
			payer.arriving.Add(-a.bytes)
		}
	}
	*a = Arrival{}
}

// arrive charges more bytes to a request that then has all of them.
func (a *Account) arrive(more, all int64) error {
	n := a.arriving.Add(more) + a.bytes.inFlight()
	l := a.limits.Load()
	if l == nil || more <= 0 {
		return nil
	}
	if most := l.Of[BytesInFlight]; most > 0 && n > most && n > all {
		a.arriving.Add(-more)
		return a.refuse(BytesInFlight, most, n-more, a.clock(time.Now()))
	}
	return nil
}
