package admin

import "net/http"

// A Cache describes the prediction cache of one version of a model. Counts begin when the server
// first knew of the version.
type Cache struct {
	Limit   int64  `json:"limit_bytes"` // of all versions together
	Entries int64  `json:"entries"`     // cached answers
	Bytes   int64  `json:"bytes"`       // the size of these
	Hits    uint64 `json:"hits"`        // requests answered from the cache
	Shared  uint64 `json:"shared"`      // requests that waited for the answer to an equal one
	Misses  uint64 `json:"misses"`      // all others
	Evicted uint64 `json:"evicted"`     // answers that made room for others
	Expired uint64 `json:"expired"`     // answers older than cache_ttl
	NotKept uint64 `json:"not_kept"`    // answers too large, or without payload memory for them
}

// A ModelCache is the answer to /v1/models/{name}/cache.
type ModelCache struct {
	Name     string         `json:"name"`
	Limit    int64          `json:"limit_bytes"`
	Entries  int64          `json:"entries"`
	Bytes    int64          `json:"bytes"`
	Versions []VersionCache `json:"versions"` // the newest first
}

// A VersionCache is one version's share of its model's cache.
type VersionCache struct {
	Version string `json:"version"`
	Cache
}

// Cleared is the answer to DELETE of /v1/models/{name}/cache: what the cache contained.
type Cleared struct {
	Name    string `json:"name"`
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

func (s Sources) cache(r *http.Request) (any, error) { return s.findCache(r.PathValue("name")) }

func (s Sources) findCache(name string) (ModelCache, error) {
	out := ModelCache{Name: name}
	versions, err := s.versions(name)
	if err != nil {
		return out, err
	}
	for _, m := range versions {
		if c := m.Cache; c != nil {
			out.Limit = c.Limit
			out.Entries += c.Entries
			out.Bytes += c.Bytes
			out.Versions = append(out.Versions, VersionCache{m.Version, *c})
		}
	}
	if out.Versions == nil {
		return out, refuse(http.StatusNotFound, "model %q has no cache; set its size with the setting cache, such as 64MiB", name)
	}
	return out, nil
}

// clearCache empties a model's cache.
func (s Sources) clearCache(r *http.Request) (any, error) {
	c, err := s.findCache(r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	entries, bytes, err := s.Caches.ClearCache(c.Name)
	if err != nil { // the model has just been removed
		return nil, refuse(http.StatusNotFound, "%v", err)
	}
	cleared := Cleared{c.Name, entries, bytes}
	s.audit(r, "clear", "cache", c.Name, cleared, nil, nil)
	return cleared, nil
}
