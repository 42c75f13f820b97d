package admin

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
