package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// get reads a path of the admin door into v.
func (c *cli) get(path string, v any) error { return c.call(http.MethodGet, path, nil, v) }

// send sends JSON to a path of the admin door, and reads its answer into v.
func (c *cli) send(method, path string, body, v any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.call(method, path, text, v)
}

// at is a path of the admin door: format with names in it.
func at(format string, names ...string) string {
	escaped := make([]any, len(names))
	for i, name := range names {
		escaped[i] = url.PathEscape(name)
	}
	return fmt.Sprintf(format, escaped...)
}

// one is the only argument of a command that takes one.
func one(command, what string, args []string) (string, error) {
	if len(args) != 1 || args[0] == "" {
		return "", usage(command, "expected %s, got %d arguments", what, len(args))
	}
	return args[0], nil
}

func (c *cli) call(method, path string, send []byte, v any) error {
	base := c.admin
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	r, err := http.NewRequestWithContext(c.ctx, method, strings.TrimSuffix(base, "/")+path, bytes.NewReader(send))
	if err != nil {
		return usage("", "--admin %s: %v", c.admin, err)
	}
	if send != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	notOurs := func(got any) error {
		return &failure{"protocol", fmt.Sprintf("%s does not answer %s as a shivad does: %v", c.admin, path, got),
			"is that the admin door? check --admin " + c.admin, exitUnreachable}
	}
	resp, err := http.DefaultClient.Do(r)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without method and URL
		if strings.Contains(err.Error(), "malformed HTTP") {
			return notOurs(err)
		}
	}
	if err != nil {
		return explain(err, "--admin", c.admin)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return explain(err, "--admin", c.admin)
	}
	if resp.StatusCode/100 != 2 {
		var e struct{ Error string }
		if json.Unmarshal(body, &e) != nil || e.Error == "" {
			return notOurs(resp.Status)
		}
		return &failure{"refused", e.Error, "", exitRefused}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return notOurs(err)
	}
	return nil
}
