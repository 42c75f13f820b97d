package server

import (
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
)

// sessions are the connected containers as the admin door shows them.
func (s *Server) sessions() []admin.Session {
	out := []admin.Session{}
	if s.containers == nil {
		return out
	}
	now := time.Now()
	for _, i := range s.containers.Sessions() {
		generation, _ := strconv.Atoi(strings.TrimPrefix(i.Generation, "v"))
		out = append(out, admin.Session{
			Model:     i.Model.Name,
			Version:   i.Model.Version,
			Instance:  i.Label,
			Remote:    i.Remote,
			Protocol:  generation,
			State:     i.State,
			Connected: now.Sub(i.Since).Seconds(),
			Batches:   int64(i.Batches),
			Pending:   i.InFlight,
			Silent:    now.Sub(i.LastSeen).Seconds(),
			Rows:      int64(i.Rows),
			Failures:  int64(i.Failures),

			LastFailure: i.LastFailure,
			Reason:      i.Reason,
		})
	}
	return out
}

func (s *Server) processes() []admin.Process { return nil }
