package operate

import (
	"net/http"

	"github.com/shivad/shivad/server/admin"
)

func (s Sources) cache(r *http.Request) (any, error) { return s.findCache(r.PathValue("name")) }

func (s Sources) findCache(name string) (admin.ModelCache, error) {
	out := admin.ModelCache{Name: name}
	versions, err := s.versions(name)
	if err != nil {
		return out, err
	}
	for _, m := range versions {
		if c := m.Cache; c != nil {
			out.Limit = c.Limit
			out.Entries += c.Entries
			out.Bytes += c.Bytes
			out.Versions = append(out.Versions, admin.VersionCache{Version: m.Version, Cache: *c})
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
	entries, bytes, err := s.ClearCache(c.Name)
	if err != nil { // the model has just been removed
		return nil, refuse(http.StatusNotFound, "%v", err)
	}
	cleared := admin.Cleared{Name: c.Name, Entries: entries, Bytes: bytes}
	s.audit(r, act{action: "clear", what: "cache", name: c.Name, before: cleared})
	return cleared, nil
}
