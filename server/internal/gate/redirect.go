package gate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// A Redirect is a name that stands for a model or a composite, or for the newest answer of a
// stream that is sent to one, with metadata that is the same in each request. It gives no rights:
// who asks for it needs those for what it stands for.
type Redirect struct {
	To      string // what it stands for, in the words of the configuration
	Model   string // the name of the model or composite in the end
	Version string // of the model; "": the default
	Latest  bool   // the newest answer of a stream
	// Values are parameters for the server, and Own those for the model, both as JSON by key. They
	// replace what the request has under these keys.
	Values, Own map[string][]byte
}

// shown is the redirect as it is listed.
func (d *Redirect) shown() string {
	text := d.To
	for _, members := range []map[string][]byte{d.Values, d.Own} {
		for _, key := range slices.Sorted(maps.Keys(members)) {
			text += fmt.Sprintf(", %s = %s", key, members[key])
		}
	}
	return text
}

// redirects returns the redirects of a table that an identity may see.
func (t *Table) redirectsOf(all map[string]*Redirect) map[string]*Redirect {
	seen := make(map[string]*Redirect, len(all))
	for name, d := range all {
		if t.who.Sees(d.Model) {
			seen[name] = d
		}
	}
	return seen
}

// Redirect returns what a name stands for; nil if it is no redirect.
func (v View) Redirect(name string) *Redirect { return v.table().redirects[name] }

// A RedirectStatus is a redirect as "!models" shows it.
type RedirectStatus struct {
	Name  string `json:"name"`
	To    string `json:"to"`    // and the metadata that it adds
	Ready bool   `json:"ready"` // what it stands for is
	// Hides is what no request reaches, because the redirect has its name.
	Hides string `json:"hides,omitempty"`
}

// Redirects lists the redirects by name.
func (v View) Redirects() []RedirectStatus { return v.table().listRedirects() }

func (t *Table) listRedirects() []RedirectStatus {
	var out []RedirectStatus
	for _, name := range slices.Sorted(maps.Keys(t.redirects)) {
		d := t.redirects[name]
		one := RedirectStatus{Name: name, To: d.shown()}
		if target, err := t.find(t.visible, d.Model, d.Version); err == nil {
			one.Ready = target.Serves
			if target.Composite != nil {
				one.Ready = target.Composite.Status().Ready
			}
		}
		if t.versions[name] != nil {
			one.Hides = "the model of this name"
		} else if c := t.composites[name]; c != nil {
			one.Hides = fmt.Sprintf("the %s of this name", c.Composite.Kind())
		}
		out = append(out, one)
	}
	return out
}

// behind returns the model that a name and a version stand for.
func (t *Table) behind(name, version string) (string, string, error) {
	d := t.redirects[name]
	if d == nil {
		return name, version, nil
	}
	version, err := d.version(name, version)
	return d.Model, version, err
}

// version returns the version that a request for the redirect of that name asks for.
func (d *Redirect) version(name, asked string) (string, error) {
	switch {
	case d.Version == "" || asked == d.Version:
		return asked, nil
	case asked == "":
		return d.Version, nil
	}
	return "", fault.Invalid("%s stands for version %s of %q, but the request names version %s",
		strconv.Quote(name), strconv.Quote(d.Version), d.Model, strconv.Quote(asked))
}

// Resolve makes a request for a redirect one for what it stands for, and reports whether it was
// one. Its model may be a name or a route, as Open takes it. Doors call it before they look at the
// request's parameters.
func (v View) Resolve(r *Request) (redirected bool, err error) {
	t := v.table()
	d, name, rest := t.split(r.Model)
	if d == nil {
		return false, nil
	}
	if r.Version, err = d.version(name, r.Version); err != nil {
		return true, err
	}
	r.Model = d.Model
	if d.Latest || rest == "latest" {
		r.AskNewest()
	} else if rest != "" { // a version
		if rest, err = d.version(name, rest); err != nil {
			return true, err
		}
		r.Model += "/" + rest
	}
	if t.infer[d.Model] == nil {
		return true, fmt.Errorf("%w (%s stands for %s)", t.routeError(d.Model, shivaWords), strconv.Quote(name), d.To)
	}
	return true, d.fill(r)
}

// AsksNewest reports whether requests for a route ask for the newest answer of a stream.
func (v View) AsksNewest(route string) bool {
	d, _, rest := v.table().split(route)
	if d == nil {
		_, latest := v.Latest(route)
		return latest
	}
	return d.Latest || rest == "latest"
}

// split finds the redirect that a route begins with; nil if there is none. rest is a version or
// "latest", or "" for the name alone.
func (t *Table) split(route string) (d *Redirect, name, rest string) {
	if len(t.redirects) == 0 {
		return nil, "", ""
	}
	path, isPath := strings.CutPrefix(route, "v2/models/")
	name, rest, _ = strings.Cut(path, "/")
	if isPath {
		rest = strings.TrimSuffix(strings.TrimPrefix(rest, "versions/"), "/infer")
		if rest == "infer" {
			rest = ""
		}
	}
	return t.redirects[name], name, rest
}

// fill gives a request the redirect's metadata.
func (d *Redirect) fill(r *Request) (err error) {
	keys := parameter.Shiva.Keys()
	if r.Newest != nil {
		keys = parameter.Latest.Keys()
	}
	asked := r.Timeout
	r.Timeout = 0 // of two in a request the shorter counts, but a route's counts alone
	for key, value := range d.Values {
		if k := keys[key]; k != nil {
			err = cmp.Or(err, k.Read(&r.Values, parameter.JSON(value)))
		}
	}
	r.Timeout = cmp.Or(r.Timeout, asked)
	if len(d.Own) > 0 && r.Newest == nil {
		r.Parameters = replaced(r.Parameters, d.Own)
	}
	if len(d.Values) > 0 && r.Metadata != nil {
		r.Metadata = replaced(r.Metadata, d.Values)
	}
	return err
}

// replaced returns a JSON object with other members in the place of those of their names.
func replaced(object []byte, with map[string][]byte) []byte {
	var b []byte
	for key, value := range jsonscan.Members(object) {
		if with[string(key)] == nil {
			b = jsonscan.AppendMember(b, key, value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(with)) {
		b = jsonscan.AppendMember(b, key, with[key])
	}
	return append(b, '}')
}
