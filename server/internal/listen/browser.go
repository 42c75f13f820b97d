package listen

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// A page can send requests to any address that its reader's machine reaches, with a form, an image
// or a script. It cannot omit or choose the headers that its browser adds: Origin (RFC 6454),
// Sec-Fetch-Site (Fetch Metadata), and Host, the name in the page's URL. A page whose own name
// resolves to the server's address (DNS rebinding) has the same origin as the server in the
// browser's view, and only Host reveals it.

// NamedHost reports whether host, with or without a port, is one that no outsider can have pointed
// at this server: an IP address, localhost, or one of names. An empty host means HTTP/1.0, which no
// browser speaks.
func NamedHost(host string, names []string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(strings.TrimSuffix(name, "."), host) })
}

// ForeignPage returns the error for a request from a page of another origin than the server's; nil
// for the server's own pages and for programs. trusted reports whether pages of an origin may send
// it nonetheless.
func ForeignPage(r *http.Request, trusted func(origin *url.URL) bool) error {
	origins := r.Header.Values("Origin")
	for _, text := range origins {
		origin, err := url.Parse(text)
		if err != nil || origin.Host == "" || !strings.EqualFold(origin.Host, r.Host) && !trusted(origin) {
			return fmt.Errorf("the request comes from a page of %.200q, not from a program or a page of %.200q", text,
				r.Host)
		}
	}
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	// The value none means that the user typed the address.
	case len(origins) > 0, site == "", site == "same-origin", site == "none":
		return nil
	default:
		return fmt.Errorf("the request comes from a page of another origin (Sec-Fetch-Site: %.40s), not from a program or a page of %.200q",
			site, r.Host)
	}
}

// SentByPage reports whether a page sent the request, according to the headers that a browser adds.
func SentByPage(r *http.Request) bool {
	return r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != ""
}
