package operate

import (
	"log/slog"
	"net/http"
	"strconv"

	"github.com/shivad/shivad/server/admin"
)

// mostLogged is how many entries are shown without ?limit: all that are kept.
const mostLogged = 1000

func (s Sources) logs(r *http.Request) (any, error) {
	most, err := readLimit(r, mostLogged, "entries")
	if err != nil {
		return nil, err
	}
	query, least, after := r.URL.Query(), slog.LevelInfo, int64(0)
	if text := query.Get("level"); text != "" {
		if err := least.UnmarshalText([]byte(text)); err != nil {
			return nil, refuse(http.StatusBadRequest, "level: expected info, warn or error, got %.40q", text)
		}
	}
	if text := query.Get("after"); text != "" {
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, refuse(http.StatusBadRequest, "after: expected the id of an entry, got %.40q", text)
		}
	}
	return admin.Logs{Entries: s.Journal.List(most, least, after)}, nil
}
