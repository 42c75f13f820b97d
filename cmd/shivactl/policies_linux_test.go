package main

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/admin/admintest"
)

// The learned state of a policy is shown by user, with each model's share of the answers.
func TestLearned(t *testing.T) {
	sources := admintest.New(fakeList, fakeStatus).Sources()
	app := admin.App{Name: "app", Models: []string{"digits", "other"}, Policy: "exp4"}
	if _, err := sources.Applications.Create(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{"user":"","loss":0.25}`, `{"user":"anna","loss":1}`} {
		if _, err := sources.Learning.Feedback(t.Context(), "app", json.RawMessage(body)); err != nil {
			t.Fatal(err)
		}
	}
	h := httptest.NewServer(admintest.Handler(sources))
	defer h.Close()
	for _, c := range []struct{ args, want string }{
		{"policies learned app", "USER    FEEDBACKS  MODEL     SHARE  MEAN LOSS  OF\n" +
			"\"\"      1          digits/1  0.500  0.250      1\n" +
			"                   other/1   0.500  0.250      1\n" +
			"\"anna\"  1          digits/1  0.500  1.000      1\n" +
			"                   other/1   0.500  1.000      1\n"},
		{"policies learned app --user anna --json",
			`{"application":"app","policy":"exp4","params":{"eta":0.1},"users":[{"user":"anna","rounds":1,` +
				`"models":[{"model":"digits/1","share":0.5,"loss":1,"count":1},` +
				`{"model":"other/1","share":0.5,"loss":1,"count":1}]}]}` + "\n"},
		{"policies learned app --limit 0", "limit: expected a number of users of at least 1"},
		{"policies forget app --yes", "exp4 of app has learned nothing\n"},
	} {
		var out bytes.Buffer
		run(t.Context(), append(strings.Fields(c.args), "--admin", h.Listener.Addr().String()), nil, &out, &out)
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: got\n%s\nexpected\n%s", c.args, out.String(), c.want)
		}
	}
}
