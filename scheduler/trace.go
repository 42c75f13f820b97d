package scheduler

// maxFollowed bounds what is noted of the other requests of a batch that are followed.
const maxFollowed = 128

// follow notes in the traces of a batch's requests, n of them, which batch they are in.
func (b *Batch) follow(n int) {
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
			*r.Trace = Trace{Parent: r.Trace.Parent, State: r.Trace.State, Sent: true, Reason: b.reason, BatchRows: b.Rows - b.padding, Replica: b.replica.label, Batch: parents}
		}
	}
}
