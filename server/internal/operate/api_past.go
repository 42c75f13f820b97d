package operate

import (
	"math"
	"net/http"
	"strconv"
)

// since returns the time, in seconds since 1970, from which a client of a watch wants the past; ok
// is false if it wants none.
func since(r *http.Request) (at float64, ok bool, err error) {
	text := r.URL.Query().Get("since")
	if text == "" {
		return 0, false, nil
	}
	at, err = strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(at) {
		return 0, false, refuse(http.StatusBadRequest, "since: expected seconds since 1970, or 0 for all samples, got %.100q", text)
	}
	return at, true, nil
}
