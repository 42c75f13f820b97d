package rest

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/internal/browser"
)

// Pages in a browser may send requests anywhere, but read answers only where the server says so
// (the CORS protocol of the Fetch standard). Before a request that no form could send, the
// browser asks whether it may.

const (
	allowOrigin    = "Access-Control-Allow-Origin"
	exposedHeaders = headLength + ", Server-Timing, Retry-After"
	// askedSeconds is how long a browser need not ask again.
	askedSeconds = "600"
)

// crossOrigin puts what a page's browser wants to know into the head of an answer, whatever it
// will be, and answers those that only ask. Without origins in the configuration it does
// nothing: OPTIONS is then a method that no path takes. Cookies and the like are never asked
// for.
func (c *call) crossOrigin(found *route) (answered bool) {
	origins, origin := c.settings.Origins, c.r.Header.Get("Origin")
	if len(origins) == 0 {
		return false
	}
	h := c.w.Header()
	all := slices.Contains(origins, "*")
	if !all {
		h.Add("Vary", "Origin") // also without one: what is kept of this answer is not for pages
	}
	if origin == "" {
		return false
	}
	allowed := all || slices.Contains(origins, strings.ToLower(origin))
	switch {
	case all:
		h.Set(allowOrigin, "*")
	case allowed:
		h.Set(allowOrigin, origin)
	}
	asks := c.r.Method == http.MethodOptions && c.r.Header.Get("Access-Control-Request-Method") != ""
	switch {
	case asks && !allowed:
		c.fail(&refusal{http.StatusForbidden, fmt.Errorf("pages of %.200s may not use this server; rest.cors_origins lists those that may", origin)})
	case asks && found != nil:
		h.Set("Access-Control-Allow-Methods", strings.Join(found.methods(), ", "))
		if headers := c.r.Header.Values("Access-Control-Request-Headers"); len(headers) > 0 {
			h.Set("Access-Control-Allow-Headers", strings.Join(headers, ", "))
		}
		h.Set("Access-Control-Max-Age", askedSeconds)
		c.begin(http.StatusNoContent)
	default:
		if allowed {
			h.Set("Access-Control-Expose-Headers", exposedHeaders)
		}
		return false
	}
	return true
}

// byProgram refuses what changes the server and may come from a page that nobody has let do so:
// one of another origin, one that has made its own name mean this server, and whatever a form
// could send. cors_origins lets pages by their names; "*" is for answers that anybody may read.
func (c *call) byProgram() error {
	kind, sent := c.r.Header.Get("Content-Type"), browser.Sent(c.r)
	if kind != "" || sent {
		// The second is what aiohttp names bytes whose type it is not told, as in Triton's
		// client for asyncio. No form sends it, and a script of another page has to ask first.
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" && media != "application/octet-stream" {
			return &refusal{http.StatusUnsupportedMediaType, fmt.Errorf("%s is sent as Content-Type: application/json, not as %.100q, which a form of any page can send", c.r.URL.Path, kind)}
		}
	}
	trusted := func(origin *url.URL) bool {
		return slices.Contains(c.settings.Origins, strings.ToLower(origin.Scheme+"://"+origin.Host))
	}
	err := browser.Foreign(c.r, trusted)
	if err == nil && sent && !browser.Named(c.r.Host, nil) {
		if origin, bad := url.Parse(c.r.Header.Get("Origin")); bad != nil || !trusted(origin) {
			err = fmt.Errorf("the request comes from a page that calls this server %.200q", c.r.Host)
		}
	}
	if err != nil {
		return &refusal{http.StatusForbidden, fmt.Errorf("%w; rest.cors_origins lists those that may load and unload models", err)}
	}
	return nil
}
