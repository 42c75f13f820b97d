package tcp

import (
	"net/http"
	"net/http/httptest"
)

type recorder struct {
	*httptest.ResponseRecorder
	request *http.Request
}

func newRecorder() recorder {
	return recorder{httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)}
}
