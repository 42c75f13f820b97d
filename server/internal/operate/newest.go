package operate

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
)

const (
	mostSeen   = 20 // of the streams of a status
	mostNewest = 12 // newest answers that are shown without ?limit
)

// newest counts the newest answers of streams.
func (r *Report) newest() admin.Newest {
	u := r.Gate.Newest().Usage()
	return admin.Newest{Bytes: u.Bytes, Limit: u.Limit, Streams: u.Streams, Waiting: u.Waiting, Answered: u.Answered,
		Failed: u.Failed, Evicted: u.Evicted}
}

// seen lists streams: those of which the newest answers are kept, or waited for, and those that
// only a model's queue knows, since nobody asks for them.
func (r *Report) seen() []admin.Seen {
	type stream struct {
		model, name, client string
		connection          uint64
	}
	at := make(map[stream]int)
	all := []admin.Seen{}
	add := func(key stream, s admin.Seen) {
		i, known := at[key]
		if !known {
			at[key] = len(all)
			all = append(all, s)
		} else if old := &all[i]; old.Age == nil || s.Age != nil && *s.Age < *old.Age {
			old.Age = s.Age // another version was faster
		}
	}
	now := time.Now()
	for _, s := range r.Gate.Newest().States(mostSeen) {
		seen := admin.Seen{
			Model: s.Name, Name: s.Stream, Connection: s.Connection != 0, Client: sender(s.Source.User, s.Client),
			Identity: s.Identity,
			Known:    s.Known, Waiting: s.Waiting, Askers: append([]string{}, s.Askers...),
		}
		if s.Kept {
			age := max(0, now.Sub(s.Captured)).Seconds()
			seen.Age = &age
		}
		key := stream{s.Name, s.Stream, seen.Client, s.Connection}
		if seen.Connection {
			key.client = "" // as its queue has it
		}
		add(key, seen)
	}
	for _, target := range r.Gate.Targets() {
		if target.Model.Stats().Streams == 0 {
			continue
		}
		for _, s := range target.Model.Streams(mostSeen) {
			seen := admin.Seen{Model: target.ID.Name, Name: s.Name, Connection: s.Connection != 0, Client: s.Client,
				Known: true, Askers: []string{}}
			if s.Newest >= 0 {
				age := s.Newest.Seconds()
				seen.Age = &age
			}
			add(stream{target.ID.Name, s.Name, s.Client, s.Connection}, seen)
		}
	}
	slices.SortStableFunc(all, func(a, b admin.Seen) int {
		return cmp.Or(min(b.Waiting, 1)-min(a.Waiting, 1), cmp.Compare(ageOf(b), ageOf(a)))
	})
	return all[:min(len(all), mostSeen)]
}

// sender names who sends a stream: a user, from any machine, or else a machine.
func sender(user, machine string) string {
	if user != "" {
		return "user " + user
	}
	return machine
}

// ageOf is the age of a stream's newest answer, above any other if it has none.
func ageOf(s admin.Seen) float64 {
	if s.Age == nil {
		return 1e18
	}
	return *s.Age
}

// Newest shows the newest answers of the streams of a model or an application, with the rights of
// the operator: one who may change the server sees those of all identities.
func (t Trials) Newest(who *access.Identity, name string, most int) (admin.NewestList, error) {
	list, all, release, err := t.Gate.As(who).NewestOf(name, who.May(access.AdminWrite, ""), most)
	if err != nil {
		return admin.NewestList{}, err
	}
	defer release()
	out := admin.NewestList{Known: all, Answers: []admin.NewestAnswer{}}
	now := time.Now()
	for _, a := range list {
		shown, err := outputs(a.Outputs)
		if err != nil {
			return admin.NewestList{}, fmt.Errorf("stream %q: %w", a.Source.Stream, err)
		}
		out.Answers = append(out.Answers, admin.NewestAnswer{
			Name: a.Source.Stream, Connection: a.Source.Connection != 0, Client: sender(a.Source.User, a.Source.Client),
			Identity: a.Source.Identity,
			Seq:      a.Seq, Age: max(0, now.Sub(a.Captured)).Seconds(), Skipped: a.Skipped,
			Model: a.Target.ID.Name, Version: a.Target.ID.Version, Outputs: shown,
		})
	}
	return out, nil
}

func (s Sources) newest(r *http.Request) (any, error) {
	most, err := readLimit(r, mostNewest, "streams")
	if err != nil {
		return nil, err
	}
	return s.Newest(s.who(r), r.PathValue("name"), most)
}
