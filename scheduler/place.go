package scheduler

import (
	"fmt"
	"slices"
)

// The place of a version: replicas with one contract hold it, and a replica with another contract
// can have it once they are gone.

// A TakenError is the error of AddReplica for a replica whose contract differs from that of the
// live replicas of its version. It is an [ErrInvalidInput].
type TakenError struct{ text string }

func (e *TakenError) Error() string { return e.text }

// Unwrap makes the error an [ErrInvalidInput].
func (e *TakenError) Unwrap() error { return ErrInvalidInput }

// taken says who has the place of a version that a replica with another contract wants.
func (m *Model) taken(spec Spec) error {
	served, declared := m.spec.String(), spec.String()
	if served == declared {
		declared += ", but " + m.spec.differingLabel(spec)
	}
	return &TakenError{fmt.Sprintf("%v: model %s is served with %s; this replica declares %s; register it as another version, or stop the %d that serve this one",
		ErrInvalidInput, m.id, served, declared, m.Replicas())}
}

// HasPlace reports whether a replica with that spec may have the place of a version: the replicas
// that hold it have the same contract; or none is live or may recover, and none is expected.
// AddReplica is less strict, and gives a newcomer the place of replicas that are only suspect, or
// are being restarted; whoever waits for a place should not use such a moment.
func (s *Scheduler) HasPlace(id ModelID, spec Spec) bool {
	m, ok := s.Model(id)
	if !ok || spec.resolve(s.ModelConfig(id.Name).Batched) != nil || m.spec.sameContract(spec) {
		return true // AddReplica refuses an invalid one with the reason
	}
	now := s.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	held := slices.ContainsFunc(m.core.replicas,
		func(r *Replica) bool { return r.state == replicaLive || r.state == replicaSuspect })
	return !held && m.core.awaited == "" && now >= m.core.returns
}
