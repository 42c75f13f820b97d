package config

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/nearest"
)

// Set sets the setting with that key ("tcp.listen", "model.digits.objective") to a value as written
// on a command line: without quotes, lists separated by commas. Faults name from ("--tcp") as the
// origin of the value.
func (c *Config) Set(key, value, from string) error {
	fs := &faults{origins: map[string]origin{key: {name: from}}}
	next, place := c.Clone(), key
	if rest, ok := strings.CutPrefix(key, "model."); ok && strings.Contains(rest, ".") {
		dot := strings.LastIndexByte(rest, '.') // names may contain dots, keys of settings do not
		name := rest[:dot]
		m := next.Model(name)
		set(fs, reflect.ValueOf(&m).Elem(), key, []string{rest[dot+1:]}, value)
		next.Models[name], place = m, joinKey("model", name, rest[dot+1:])
	} else {
		set(fs, reflect.ValueOf(&next).Elem(), key, strings.Split(key, "."), value)
	}
	if err := fs.err(); err != nil {
		return err
	}
	next.origins[place] = origin{name: from}
	*c = next
	return nil
}

// set walks the rest of a key down from v, and stores the text in the setting there.
func set(fs *faults, v reflect.Value, key string, rest []string, text string) {
	if len(rest) > 0 {
		var known []string
		if v.Kind() == reflect.Struct {
			for f := range fieldsOf(v) {
				if f.key == rest[0] {
					set(fs, f.value, key, rest[1:], text)
					return
				}
				known = append(known, f.key)
			}
		}
		fs.Add(key, "no such setting%s", didYouMean(rest[0], known))
		return
	}
	var value any = text // if it does not parse, put reports that
	switch v.Addr().Interface().(type) {
	case *string, *time.Duration, *Bytes, *Batching:
	case *bool, *setting.Cast, *setting.Latest:
		if b, err := strconv.ParseBool(text); err == nil {
			value = b
		}
	case *int, *setting.Keep, *Replicas:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			value = n
		}
	case *Addrs, *[]string, *Devices:
		list := []any{}
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		value = list
	default: // a table
		fs.Add(key, "no such setting")
		return
	}
	put(fs, v, key, value)
}

// setTree stores a document in c.
func (c *Config) setTree(fs *faults, tree map[string]any) {
	// Store [defaults] first: models start from it, wherever it is in the file.
	if t, ok := tree["defaults"]; ok {
		put(&faults{}, reflect.ValueOf(&c.Defaults).Elem(), "defaults", t)
	}
	models, isTable := tree["model"].(map[string]any)
	if isTable {
		for _, name := range slices.Sorted(maps.Keys(models)) {
			m := Model{Policy: c.Defaults}
			put(fs, reflect.ValueOf(&m).Elem(), joinKey("model", name), models[name])
			c.Models[name] = m
		}
		tree = maps.Clone(tree)
		delete(tree, "model")
	}
	put(fs, reflect.ValueOf(c).Elem(), "", tree)
}

// put stores a value of the tree in dst, or adds faults.
func put(fs *faults, dst reflect.Value, key string, value any) {
	switch p := dst.Addr().Interface().(type) {
	case *time.Duration:
		var text string
		if assign(fs, &text, key, value, `a duration such as "30s"`) {
			var err error
			*p, err = setting.ParseDuration(text)
			fs.Check(key, err)
		}
	case *Bytes:
		if n, ok := value.(int64); ok {
			*p = Bytes(n)
			return
		}
		var text string
		if assign(fs, &text, key, value, `a size such as "256MiB" or a number of bytes`) {
			var err error
			*p, err = setting.ParseBytes(text)
			fs.Check(key, err)
		}
	case *setting.Keep:
		text, ok := value.(string)
		if n, is := value.(int64); is {
			text, ok = strconv.FormatInt(n, 10), true
		}
		k, err := setting.ParseKeep(text)
		if !ok || err != nil && text != "" {
			fs.Add(key, "expected %s, got %s", setting.KeepValues, describe(value))
			return
		}
		*p = k // "" becomes the zero value
	case *setting.Cast:
		c, err := setting.CastOf(value)
		if err != nil {
			fs.Add(key, "expected %s, got %s", setting.CastValues, describe(value))
			return
		}
		*p = c
	case *setting.Latest:
		l, err := setting.LatestOf(value)
		if err != nil {
			fs.Add(key, "expected %s, got %s", setting.LatestValues, describe(value))
			return
		}
		*p = l
	case *Addrs:
		if s, ok := value.(string); ok {
			value = []any{s}
			if s == "" {
				value = []any{}
			}
		}
		putSlice(fs, (*[]string)(p), key, value, "an address or a list of addresses")
	case *Hashes:
		putOneOrMore(fs, (*[]string)(p), key, value, "the SHA-256 of a token or a list of them")
	case *Patterns:
		putOneOrMore(fs, (*[]string)(p), key, value, "a pattern of certificates or a list of them")
	case *Devices:
		putOneOrMore(fs, (*[]string)(p), key, value, "a device or a list of devices")
	case interface{ put(*faults, string, any) }: // a type with several forms
		p.put(fs, key, value)
	case *string:
		assign(fs, p, key, value, "a string")
	case *bool:
		assign(fs, p, key, value, "true or false")
	case *float64:
		if n, ok := value.(int64); ok {
			value = float64(n)
		}
		assign(fs, p, key, value, "a number")
	case *int:
		var n int64
		if assign(fs, &n, key, value, "an integer") {
			if *p = int(n); int64(*p) != n {
				fs.Add(key, "expected a smaller integer, got %d", n)
			}
		}
	case *[]string:
		putSlice(fs, p, key, value, "a list of strings")
	case *[]Container:
		putSlice(fs, p, key, value, "a list of tables ([["+key+"]])")
	case *[]Identity:
		putSlice(fs, p, key, value, "a list of tables ([["+key+"]])")
	case *[]ModelFile:
		putSlice(fs, p, key, value, "a list of tables ([["+key+"]])")
	case *[]ModelFolder:
		putSlice(fs, p, key, value, "a list of tables ([["+key+"]])")
	case *[]admin.Stage:
		putSlice(fs, p, key, value, "a list of tables ([["+key+"]])")
	case *map[string]string:
		putMap(fs, p, key, value, "a table of strings")
	case *map[string]admin.Pipeline:
		putMap(fs, p, key, value, "tables (["+key+".NAME])")
	case *map[string]Model: // not a table: otherwise setTree has removed it
		fs.Add(key, "expected tables ([%s.NAME]), got %s", key, describe(value))
	default:
		putStruct(fs, dst, key, value)
	}
}

// assign stores a value of the type of dst, or adds a fault.
func assign[T any](fs *faults, dst *T, key string, value any, want string) bool {
	v, ok := value.(T)
	if !ok {
		fs.Add(key, "expected %s, got %s", want, describe(value))
		return false
	}
	*dst = v
	return true
}

// putMap stores a table whose keys are names.
func putMap[T any](fs *faults, dst *map[string]T, key string, value any, want string) {
	var t map[string]any
	if !assign(fs, &t, key, value, want) {
		return
	}
	*dst = make(map[string]T, len(t))
	for _, k := range slices.Sorted(maps.Keys(t)) {
		var one T
		if v := reflect.ValueOf(&one).Elem(); v.Kind() == reflect.Struct {
			setDefaults(v)
		}
		put(fs, reflect.ValueOf(&one).Elem(), joinKey(key, k), t[k])
		(*dst)[k] = one
	}
}

// putOneOrMore stores a list of strings, of which the file may give a single one.
func putOneOrMore(fs *faults, dst *[]string, key string, value any, want string) {
	if s, ok := value.(string); ok {
		value = []any{s}
	}
	putSlice(fs, dst, key, value, want)
}

// putSlice stores a list, element by element.
func putSlice[T any](fs *faults, dst *[]T, key string, value any, want string) {
	var list []any
	if !assign(fs, &list, key, value, want) {
		return
	}
	*dst = make([]T, len(list))
	for i := range list {
		one := reflect.ValueOf(&(*dst)[i]).Elem()
		if one.Kind() == reflect.Struct {
			setDefaults(one)
		}
		put(fs, one, indexKey(key, i), list[i])
	}
}

// putStruct stores a table, key by key.
func putStruct(fs *faults, dst reflect.Value, key string, value any) {
	if dst.Kind() == reflect.Pointer { // to a setting of any kind, which may be left out
		dst.Set(reflect.New(dst.Type().Elem()))
		put(fs, dst.Elem(), key, value)
		return
	}
	var table map[string]any
	if !assign(fs, &table, key, value, "a table (["+key+"])") {
		return
	}
	var known []string
	for f := range fieldsOf(dst) {
		known = append(known, f.key)
		if v, ok := table[f.key]; ok {
			put(fs, f.value, joinKey(key, f.key), v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(table)) {
		if !slices.Contains(known, k) {
			fs.Add(joinKey(key, k), "unknown key%s", didYouMean(k, known))
		}
	}
}

// field is one setting of a struct, under its key in the file.
type field struct {
	key   string
	value reflect.Value
	tag   reflect.StructTag
}

// fieldsOf yields the settings of a struct in order, including those of embedded structs.
func fieldsOf(v reflect.Value) iter.Seq[field] {
	return func(yield func(field) bool) {
		for i := range v.NumField() {
			switch f := v.Type().Field(i); {
			case f.Anonymous:
				for inner := range fieldsOf(v.Field(i)) {
					if !yield(inner) {
						return
					}
				}
			case f.IsExported() && f.Tag.Get("toml") != "-":
				if !yield(field{f.Tag.Get("toml"), v.Field(i), f.Tag}) {
					return
				}
			}
		}
	}
}

// describe names a value in TOML's terms.
func describe(value any) string {
	switch v := value.(type) {
	case string:
		return "the string " + strconv.Quote(v)
	case int64:
		return fmt.Sprintf("the integer %d", v)
	case float64:
		return fmt.Sprintf("the float %v", v)
	case bool:
		return fmt.Sprintf("%v", v)
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	default:
		return fmt.Sprintf("the date or time %v", v)
	}
}

// elsewhere are the words of other servers for a key of this one.
var elsewhere = map[string]string{"http": "rest", "shiva": "tcp", "models": "model",
	"address": "listen", "addr": "listen", "bind": "listen", "host": "listen", "port": "listen"}

// didYouMean suggests the known key nearest to k, or lists all of them if none is near.
func didYouMean(k string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	if own := elsewhere[k]; slices.Contains(known, own) {
		return fmt.Sprintf("; did you mean %s?", own)
	}
	if near := nearest.Names(k, known); len(near) > 0 {
		return fmt.Sprintf("; did you mean %s?", near[0])
	}
	return "; known here: " + strings.Join(known, ", ")
}
