// Package browser tells requests that a page in somebody's browser has sent from those of programs.
//
// A page may send a request to any address that its reader's machine reaches: a form, an image,
// or a script. What it cannot do is leave out or choose what the browser says about it: Origin
// (RFC 6454), Sec-Fetch-Site (Fetch Metadata), and Host, which is the name that the page
// believes to talk to. A page whose own name was made to mean the server's address (DNS
// rebinding) is of the same origin as the server to its browser, and gives itself away by that
// name.
package browser

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Named reports whether host, with or without a port, is one that no stranger can have given to
// this server: an IP address, localhost, or one of names. No host at all is one of HTTP/1.0,
// which no browser speaks.
func Named(host string, names []string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), host) })
}

// Foreign is the error for a request of a page that is not of the server's own origin; nil for
// own pages and for programs. trusted tells whether pages of another origin may send it
// nonetheless.
func Foreign(r *http.Request, trusted func(origin *url.URL) bool) error {
	origins := r.Header.Values("Origin")
	for _, text := range origins {
		origin, err := url.Parse(text)
		if err != nil || origin.Host == "" || !strings.EqualFold(origin.Host, r.Host) && !trusted(origin) {
			return fmt.Errorf("the request comes from a page of %.200q, not from a program or a page of %.200q", text, r.Host)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case len(origins) > 0, site == "", site == "same-origin", site == "none": // none: the reader typed the address
		return nil
	default:
		return fmt.Errorf("the request comes from a page of another origin (Sec-Fetch-Site: %.40s), not from a program or a page of %.200q", site, r.Host)
	}
}

// Sent reports whether any page sent the request, as far as its browser says so.
func Sent(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}
