package gate

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/cache"
)

// A modelCache is the prediction cache of one model, with its versions.
type modelCache struct {
	cache    *cache.Cache
	ttl      time.Duration
	versions map[incarnation]*cache.Version
}

// An incarnation is a version of a model from its first replica until its last is removed.
type incarnation struct {
	model *scheduler.Model
	n     uint64
}

// attachCaches gives the targets of t their caches. It returns functions that end the caches no
// longer used; call them once t is in force. The answers of a version last as long as it has live
// replicas. After the last one is removed, the same version may come back as another build of the
// model; a restart of one replica among several changes nothing.
func (g *Gate) attachCaches(t *Table) (ended []func()) {
	if g.closed {
		return nil
	}
	caches := make(map[string]*modelCache)
	for name, targets := range t.versions {
		o := g.cfg.Options(name)
		old := g.caches[name]
		if o.CacheBytes == 0 {
			continue
		}
		now := &modelCache{ttl: o.CacheTTL, versions: make(map[incarnation]*cache.Version)}
		if old != nil && old.ttl == o.CacheTTL {
			now.cache = old.cache
			if old.cache.Usage().Limit != o.CacheBytes {
				now.cache.Resize(o.CacheBytes)
			}
		} else {
			now.cache = cache.New(cache.Config{Bytes: o.CacheBytes, TTL: o.CacheTTL, Pool: g.cfg.Pool,
				Submit: g.sched.Submit})
			old = nil
		}
		for _, target := range targets {
			if target.Live == 0 {
				continue
			}
			at := incarnation{target.Model, target.Model.Incarnation()}
			if old != nil {
				target.cache = old.versions[at]
			}
			if target.cache == nil {
				target.cache = now.cache.Version(target.Metrics.Cache())
			}
			now.versions[at] = target.cache
		}
		caches[name] = now
	}
	for name, old := range g.caches {
		now := caches[name]
		if now == nil || now.cache != old.cache {
			ended = append(ended, old.cache.Close)
			continue
		}
		for at, version := range old.versions {
			if now.versions[at] != version {
				ended = append(ended, version.Drop)
			}
		}
	}
	g.caches = caches
	g.caching.Store(len(caches) > 0)
	return ended
}

// Cache reports what the cache of a model holds; false if the model has none.
func (g *Gate) Cache(model string) (cache.Usage, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.caches[model]; c != nil {
		return c.cache.Usage(), true
	}
	return cache.Usage{}, false
}

// ClearCache empties the cache of a model, and returns how much it held.
func (g *Gate) ClearCache(model string) (entries, bytes int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.caches[model]
	if c == nil {
		return 0, 0, fmt.Errorf("%w: model %q has no cache; to give it one, set its size with cache in [model.NAME]",
			scheduler.ErrNotFound, model)
	}
	entries, bytes = c.cache.Clear()
	return entries, bytes, nil
}

// Close ends the caches for good. Later requests are served without them.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.caches {
		c.cache.Close()
	}
	g.caches = nil
	g.caching.Store(false)
}
