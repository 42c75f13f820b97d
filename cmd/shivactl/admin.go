package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/shivad/shivad/shiva/unixsocket"
)

// httpClient returns a client for a server at an address, or behind a URL, and the URL that its
// paths begin with.
func (c *cli) httpClient(addr string) (client *http.Client, base string, err error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if t.TLSClientConfig, err = c.tls.config(); err != nil {
		return nil, "", err
	}
	network, target := unixsocket.Target(addr)
	host, encrypted := cutTLS(addr)
	switch {
	case network == "unix":
		base = "http://localhost"
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, target)
		}
	case encrypted:
		base = "https://" + host
	case strings.Contains(addr, "://"):
		base = strings.TrimSuffix(addr, "/")
	default:
		base = "http://" + addr
	}
	return &http.Client{Transport: t}, base, nil
}

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

// fetch reads a path of the admin door, and prints the answer: as JSON, or by print.
func fetch[T any](c *cli, path string, print func(T) error) error {
	return order(c, http.MethodGet, path, nil, print)
}

// order sends a request to the admin door, and prints the answer as fetch does.
func order[T any](c *cli, method, path string, body []byte, print func(T) error) error {
	var answer T
	if err := c.call(method, path, body, &answer); err != nil {
		return err
	}
	if c.json {
		return c.printJSON(answer)
	}
	return print(answer)
}

// submit is order with a value as JSON for a body.
func submit[T any](c *cli, method, path string, body any, print func(T) error) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return order(c, method, path, text, print)
}

// apiPath returns a path of the admin door: format with escaped names.
func apiPath(format string, names ...string) string {
	escaped := make([]any, len(names))
	for i, name := range names {
		escaped[i] = url.PathEscape(name)
	}
	return fmt.Sprintf(format, escaped...)
}

func (c *cli) call(method, path string, send []byte, v any) error {
	client, base, err := c.httpClient(c.admin)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(c.ctx, method, base+path, bytes.NewReader(send))
	if err != nil {
		return usage("", "--admin %s: %v", c.admin, err)
	}
	if send != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	shown := show(r, c.token)
	notOurs := func(got any) error {
		return &failure{"protocol", fmt.Sprintf("%s does not answer %s as a shivad does: %v", c.admin, path, got),
			"is that the admin API? check --admin " + c.admin, exitUnreachable}
	}
	resp, body, err := c.exchange(client, r)
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without method and URL
		if strings.Contains(err.Error(), "malformed HTTP") {
			return notOurs(err)
		}
	}
	if err != nil {
		return explain(err, "--admin", c.admin)
	}
	// The token's file was replaced meanwhile.
	if resp.StatusCode == http.StatusUnauthorized && shown != c.token.Token() {
		return c.call(method, path, send, v)
	}
	if resp.StatusCode/100 != 2 {
		var e struct{ Error string }
		if json.Unmarshal(body, &e) != nil || e.Error == "" {
			return notOurs(resp.Status)
		}
		kind := "refused"
		if tokenHints[typeOf(resp.StatusCode)] != "" {
			kind = typeOf(resp.StatusCode)
		}
		message, hint := commandFor(e.Error)
		return &failure{kind, message, cmp.Or(tokenHints[kind], hint), exitRefused}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return notOurs(err)
	}
	return nil
}

// commandFor returns an error of the admin API without the path that it points to, and a hint that
// names the command instead.
func commandFor(text string) (message, hint string) {
	for _, list := range [...]string{"apps", "models", "pipelines"} {
		if cut, found := strings.CutSuffix(text, "; /v1/"+list+" lists them"); found {
			return cut, "shivactl " + list + " lists them"
		}
	}
	return text, ""
}

// exchange sends a request and reads the whole answer.
func (c *cli) exchange(client *http.Client, r *http.Request) (*http.Response, []byte, error) {
	defer c.waiting(cmp.Or(c.doing, "waiting for "+c.admin))()
	resp, err := client.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}
