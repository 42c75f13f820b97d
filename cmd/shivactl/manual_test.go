package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The manual is read without a server: its contents, a topic, and what a search finds.
func TestManualTopics(t *testing.T) {
	t.Setenv("PAGER", "false") // standard output is no terminal: no pager is called
	for args, want := range map[string]string{
		"manual":                   "# Manual of shivad\n",
		"manual tls":               "# Encrypt with TLS\n",
		"manual TLS --json":        `{"topic":"tls","title":"Encrypt with TLS","text":"# Encrypt`,
		"manual rate limit":        "quotas             Quotas and rate limits",
		"manual rate limit --json": `{"pages":[{"topic":"quotas",`,
	} {
		var out, errs bytes.Buffer
		code := run(context.Background(), strings.Fields(args), nil, &out, &errs)
		if code != exitOK || !strings.HasPrefix(out.String(), want) || errs.Len() > 0 || strings.Contains(out.String(), "<!--") {
			t.Errorf("%s: exit %d, %s\n%s", args, code, &errs, &out)
		}
	}
	var out, errs bytes.Buffer
	if code := run(context.Background(), []string{"manual", "zyzzyva"}, nil, &out, &errs); code != exitUsage ||
		!strings.Contains(errs.String(), `has "zyzzyva"`) {
		t.Errorf("exit %d: %s", code, &errs)
	}
}

// Users find what they search for.
func TestManualSearches(t *testing.T) {
	table, err := os.ReadFile("../../server/manual/testdata/searches.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		query, want, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		var out, errs bytes.Buffer
		args := append(strings.Fields("manual --json"), strings.Fields(query)...)
		var found topicHits
		code := run(context.Background(), args, nil, &out, &errs)
		page, topic := struct{ Topic string }{}, ""
		if json.Unmarshal(out.Bytes(), &found) == nil && len(found.Pages) > 0 {
			topic = found.Pages[0].Topic
		} else if json.Unmarshal(out.Bytes(), &page) == nil { // the query is the name of a topic
			topic = page.Topic
		}
		if code != exitOK || topic != want {
			t.Errorf("%s: expected %s first, got %q (exit %d) %s", query, want, topic, code, &errs)
		}
	}
}
