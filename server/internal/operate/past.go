package operate

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/wake"
)

// Bounds of the past that is kept.
const (
	pastEvery   = 5 * time.Second
	pastSamples = 120 // ten minutes
	pastModels  = 200 // versions and applications, the first by name: 3 KiB each
)

// A Past keeps how models and applications did in the last minutes, for later viewers.
type Past struct {
	Report   *Report
	Learning Learning

	mu     sync.Mutex
	times  []float64 // seconds since 1970
	models map[pastKey]*pastModel
}

type pastKey struct{ name, version string }

type pastModel struct {
	before admin.Health // counters as of the last sample
	at     float64      // time of the last sample
	// Each series has a value for each of the times.
	series [measures]admin.Series
	shares map[string]admin.Series // of an application, by name/version
}

// The figures that are measured for a model.
const (
	measuredRequests = iota
	measuredFailed
	measuredInTime
	measuredP50
	measuredP99
	measuredWaiting
	measures
)

// nan stands for a missing value.
var nan = float32(math.NaN())

// Run takes the samples until stopping is closed.
func (p *Past) Run(stopping <-chan struct{}) {
	for range wake.Every(pastEvery, stopping) {
		p.sample()
	}
}

// sample adds one sample.
func (p *Past) sample() {
	health := p.Report.health(pastModels)
	shares := map[string]map[string]float32{}
	for _, h := range health {
		if h.Version == "" {
			shares[h.Name] = p.shares(h.Name)
		}
	}
	// The time is the same as in a status, so that the page can continue where these samples end.
	p.add(float64(p.Report.Started.UnixMilli())/1000+time.Since(p.Report.Started).Seconds(), health, shares)
}

// add stores a sample: shares are by application, and then by model.
func (p *Past) add(now float64, health []admin.Health, shares map[string]map[string]float32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.times) == pastSamples {
		p.drop()
	}
	p.times = append(p.times, now)
	was := p.models
	p.models = make(map[pastKey]*pastModel, len(health)) // those no longer there are forgotten
	for _, h := range health {
		key := pastKey{h.Name, h.Version}
		m := was[key]
		if m == nil {
			m = &pastModel{before: h, at: now, shares: map[string]admin.Series{}}
		}
		p.models[key] = m
		for i, v := range m.since(h, now-m.at) {
			m.series[i] = p.put(m.series[i], v)
		}
		for model := range shares[h.Name] {
			if _, ok := m.shares[model]; !ok && h.Version == "" {
				m.shares[model] = nil
			}
		}
		for model, series := range m.shares {
			share, ok := shares[h.Name][model]
			if !ok {
				share = nan
			}
			m.shares[model] = p.put(series, share)
		}
		m.before, m.at = h, now
	}
}

// put appends the value for the latest time. A series that starts later is padded with nan.
func (p *Past) put(s admin.Series, v float32) admin.Series {
	for len(s) < len(p.times)-1 {
		s = append(s, nan)
	}
	return append(s, v)
}

// drop removes the first sample, and the models that have had no share since.
func (p *Past) drop() {
	p.times = slices.Delete(p.times, 0, 1)
	for _, m := range p.models {
		for i, s := range m.series {
			m.series[i] = slices.Delete(s, 0, 1)
		}
		for model, s := range m.shares {
			m.shares[model] = slices.Delete(s, 0, 1)
			if !slices.ContainsFunc(m.shares[model], func(v float32) bool { return v == v }) {
				delete(m.shares, model)
			}
		}
	}
}

// since returns what has happened since the last sample, which was that many seconds ago.
func (m *pastModel) since(h admin.Health, seconds float64) (values [measures]float32) {
	for i := range values {
		values[i] = nan
	}
	values[measuredWaiting] = float32(h.QueueRows)
	if seconds <= 0 || h.Requests < m.before.Requests { // first sample, or counters restarted
		return values
	}
	n := h.Requests - m.before.Requests
	values[measuredRequests] = float32(float64(n) / seconds)
	values[measuredFailed] = float32(float64(h.Failed-m.before.Failed) / seconds)
	if n == 0 {
		return values
	}
	if judged := h.Judged - m.before.Judged; judged > 0 {
		values[measuredInTime] = min(1, float32(h.InTime-m.before.InTime)/float32(judged))
	}
	took := slices.Clone(h.Durations)
	for i := range took {
		if k := slices.IndexFunc(m.before.Durations, func(b admin.DurationClass) bool {
			return b.Above == took[i].Above
		}); k >= 0 {
			took[i].Requests -= m.before.Durations[k].Requests
		}
	}
	values[measuredP50], values[measuredP99] = quantile(took, 0.5), quantile(took, 0.99)
	return values
}

// quantile returns the time within which that share of requests was answered, in seconds. Within a
// class, requests count as spread evenly over the logarithm.
func quantile(classes []admin.DurationClass, share float64) float32 {
	rank := 0.0
	for _, c := range classes {
		rank += share * float64(c.Requests)
	}
	for _, c := range classes {
		n := float64(c.Requests)
		switch {
		case n == 0 || rank > n:
			rank -= n
			continue
		case c.UpTo == 0:
			return float32(c.Above)
		}
		from := cmp.Or(c.Above, c.UpTo/2)
		return float32(from * math.Pow(c.UpTo/from, rank/n))
	}
	return nan
}

// shares returns the share of each model in the answers of an application; nil: nothing is learned.
func (p *Past) shares(application string) map[string]float32 {
	u, err := p.Learning.First(application)
	if err != nil || u == nil {
		return nil
	}
	shares := map[string]float32{}
	for _, m := range u.Models {
		shares[m.Model] = float32(m.Share)
	}
	return shares
}

// Since returns the samples after a time, in seconds since 1970.
func (p *Past) Since(at float64) admin.Past {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := 0
	for from < len(p.times) && p.times[from] <= at {
		from++
	}
	out := admin.Past{Times: append([]float64{}, p.times[from:]...), Models: []admin.PastModel{},
		Applications: []admin.PastApplication{}}
	if len(out.Times) == 0 {
		return out
	}
	after := func(s admin.Series) admin.Series { return slices.Clone(s[from:]) }
	for key, m := range p.models {
		s := &m.series
		out.Models = append(out.Models, admin.PastModel{
			Name: key.name, Version: key.version, Requests: after(s[measuredRequests]),
			Failed: after(s[measuredFailed]), InTime: after(s[measuredInTime]),
			P50: after(s[measuredP50]), P99: after(s[measuredP99]), Waiting: after(s[measuredWaiting]),
		})
		if key.version != "" {
			continue
		}
		one := admin.PastApplication{Name: key.name, Shares: map[string]admin.Series{}}
		for model, shares := range m.shares {
			one.Shares[model] = after(shares)
		}
		out.Applications = append(out.Applications, one)
	}
	return out
}
