package scheduler

// maxFollowed bounds how many traced requests of a batch Trace.Batch lists.
const maxFollowed = 128

// shareTraces records the batch in the traces of its n traced requests.
func (b *Batch) shareTraces(n int) {
	var parents []Parent
	if n > 1 {
		parents = make([]Parent, 0, min(n, maxFollowed))
		for i := range b.spans {
			if r := b.spans[i].req; r != nil && r.Trace != nil && len(parents) < maxFollowed {
				parents = append(parents, r.Trace.Parent)
			}
		}
	}
	for i := range b.spans {
		if r := b.spans[i].req; r != nil && r.Trace != nil {
			*r.Trace = Trace{Parent: r.Trace.Parent, State: r.Trace.State, Sent: true, Reason: b.reason,
				BatchRows: b.Rows - b.padding, Replica: b.replica.label, Batch: parents}
		}
	}
}
