package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
)

// WriteTOML writes c as a file from which Load reads the same configuration.
func (c Config) WriteTOML(w io.Writer) error {
	var b bytes.Buffer
	writeTable(&b, "", reflect.ValueOf(c))
	_, err := w.Write(bytes.TrimLeft(b.Bytes(), "\n"))
	return err
}

// writeTable writes the settings of a struct, plain ones before tables.
func writeTable(b *bytes.Buffer, table string, v reflect.Value) {
	for f := range fieldsOf(v) {
		if text, ok := tomlValue(f.value); ok {
			b.WriteString(f.key + " = " + text + "\n")
		}
	}
	for f := range fieldsOf(v) {
		if f.value.Kind() == reflect.Pointer {
			f.value = f.value.Elem() // invalid if it was left out
		}
		if !f.value.IsValid() {
			continue
		}
		key := joinKey(table, f.key)
		switch x := f.value.Interface().(type) {
		case map[string]Model:
			writeNamed(b, key, x)
		case map[string]admin.Pipeline:
			writeNamed(b, key, x)
		case []admin.Stage:
			writeTables(b, key, x)
		case Routes:
			for _, name := range slices.Sorted(maps.Keys(x)) {
				b.WriteString("\n[" + joinKey(key, name) + "]\n")
				tree := x[name].tree()
				for _, k := range slices.Sorted(maps.Keys(tree)) {
					b.WriteString(quoteKey(k) + " = " + anyTOML(tree[k]) + "\n")
				}
			}
		case []Container:
			writeTables(b, key, x)
		case []ModelFile:
			writeTables(b, key, x)
		case []ModelFolder:
			writeTables(b, key, x)
		case []Identity:
			writeTables(b, key, x)
		case Replicas: // plain
		default:
			if f.value.Kind() == reflect.Struct {
				b.WriteString("\n[" + key + "]\n")
				writeTable(b, key, f.value)
			}
		}
	}
}

// writeNamed writes tables by name.
func writeNamed[T any](b *bytes.Buffer, key string, tables map[string]T) {
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		key, one := joinKey(key, name), tables[name]
		b.WriteString("\n[" + key + "]\n")
		writeTable(b, key, reflect.ValueOf(one))
	}
}

// writeTables writes a list of tables.
func writeTables[T any](b *bytes.Buffer, key string, list []T) {
	for i := range list {
		b.WriteString("\n[[" + key + "]]\n")
		writeTable(b, key, reflect.ValueOf(list[i]))
	}
}

// tomlValue returns the TOML of a plain value; false for a table.
func tomlValue(v reflect.Value) (string, bool) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if !v.IsValid() {
		return "", false // left out
	}
	switch x := v.Interface().(type) {
	case string:
		return quote(x), true
	case time.Duration:
		return quote(setting.FormatDuration(x)), true
	case Bytes:
		return quote(x.String()), true
	case setting.Keep:
		if x > setting.KeepLatest {
			return x.String(), true
		}
		return quote(x.String()), true
	case setting.Cast:
		return x.String(), true
	case setting.Latest:
		return x.String(), true
	case Replicas:
		return x.toml(), true
	case bool:
		return strconv.FormatBool(x), true
	case int:
		return strconv.Itoa(x), true
	case float64:
		return strconv.FormatFloat(x, 'g', -1, 64), true
	case Addrs:
		return quoteList(x), true
	case Hashes:
		return quoteList(x), true
	case Patterns:
		return quoteList(x), true
	case Devices:
		return quoteList(x), true
	case Batching:
		return quote(string(x)), true
	case []string:
		return quoteList(x), true
	case map[string]string:
		pairs := []string{}
		for _, k := range slices.Sorted(maps.Keys(x)) {
			pairs = append(pairs, quoteKey(k)+" = "+quote(x[k]))
		}
		return "{ " + strings.Join(pairs, ", ") + " }", true
	}
	return "", false
}

// anyTOML returns the TOML of a value of a document.
func anyTOML(value any) string {
	switch v := value.(type) {
	case string:
		return quote(v)
	case float64:
		text := strings.ToLower(strconv.FormatFloat(v, 'f', -1, 64)) // "nan", "+inf"
		if strings.Trim(text, "-0123456789") == "" {
			text += ".0" // without a point it would be an integer
		}
		return text
	case []any:
		list := make([]string, len(v))
		for i := range v {
			list[i] = anyTOML(v[i])
		}
		return "[" + strings.Join(list, ", ") + "]"
	case map[string]any:
		pairs := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			pairs = append(pairs, quoteKey(k)+" = "+anyTOML(v[k]))
		}
		return "{ " + strings.Join(pairs, ", ") + " }"
	default:
		return fmt.Sprint(v)
	}
}

func quoteList(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quote returns a TOML basic string. All of JSON's escapes are valid in TOML, which also requires
// DEL to be escaped.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) // encoding a string into memory cannot fail
	return strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\x7f", `\u007f`)
}

// MarshalJSON encodes c with the keys and the forms of the file: durations and sizes are strings.
func (c Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonTree(reflect.ValueOf(c)))
}

// MarshalJSON encodes p like Config's MarshalJSON.
func (p Policy) MarshalJSON() ([]byte, error) { return json.Marshal(jsonTree(reflect.ValueOf(p))) }

// MarshalJSON encodes m like Config's MarshalJSON.
func (m Model) MarshalJSON() ([]byte, error) { return json.Marshal(jsonTree(reflect.ValueOf(m))) }

// MarshalJSON encodes l like Config's MarshalJSON.
func (l Limits) MarshalJSON() ([]byte, error) { return json.Marshal(jsonTree(reflect.ValueOf(l))) }

// jsonList returns the JSON form of a list of tables.
func jsonList[T any](list []T) []any {
	out := make([]any, len(list))
	for i := range list {
		out[i] = jsonTree(reflect.ValueOf(list[i]))
	}
	return out
}

// jsonMap returns the JSON form of tables by name.
func jsonMap[T any](tables map[string]T) map[string]any {
	out := make(map[string]any, len(tables))
	for name, one := range tables {
		out[name] = jsonTree(reflect.ValueOf(one))
	}
	return out
}

// jsonTree returns the JSON form of a value; nil for the zero reflect.Value.
func jsonTree(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if !v.IsValid() {
		return nil
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return setting.FormatDuration(x)
	case Bytes:
		return x.String()
	case Replicas:
		return x.json()
	case map[string]Model:
		return jsonMap(x)
	case map[string]admin.Pipeline:
		return jsonMap(x)
	case []admin.Stage:
		return jsonList(x)
	case Route:
		return x.tree()
	case Routes:
		out := make(map[string]any, len(x))
		for name, r := range x {
			out[name] = r.tree()
		}
		return out
	case []Container:
		return jsonList(x)
	case []Identity:
		return jsonList(x)
	case []ModelFile:
		return jsonList(x)
	case []ModelFolder:
		return jsonList(x)
	}
	switch {
	case v.Kind() == reflect.Slice && v.IsNil():
		return []any{}
	case v.Kind() == reflect.Map && v.IsNil():
		return map[string]any{}
	case v.Kind() != reflect.Struct:
		return v.Interface()
	}
	out := map[string]any{}
	for f := range fieldsOf(v) {
		if f.value.Kind() != reflect.Pointer || !f.value.IsNil() {
			out[f.key] = jsonTree(f.value)
		}
	}
	return out
}
