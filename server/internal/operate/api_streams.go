package operate

import (
	"net/http"

	"github.com/shivad/shivad/server/admin"
)

// mostStreams is how many streams of a version are shown without ?limit.
const mostStreams = 100

func (s Sources) streams(r *http.Request) (any, error) {
	most, err := readLimit(r, mostStreams, "streams")
	if err != nil {
		return nil, err
	}
	name := r.PathValue("name")
	list := s.Report.Streams(name, most)
	if len(list) == 0 {
		return nil, noName("model", name, s.modelNames(), "/v1/models")
	}
	return admin.StreamList{Versions: list}, nil
}
