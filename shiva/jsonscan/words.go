package jsonscan

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Words returns an error of encoding/json in words for whoever wrote the text: by the names of JSON
// instead of Go's. Other errors are returned unchanged.
func Words(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		where := ""
		if e.Field != "" {
			where = e.Field + ": "
		}
		return fmt.Errorf("%sexpected %s, got %s", where, kindOf(e.Type), article(e.Value))
	}
	if err != nil {
		if text, ok := strings.CutPrefix(err.Error(), "json: "); ok {
			return errors.New(text)
		}
	}
	return err
}

// kindOf returns what JSON calls the values that a Go type is read from.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number of 0 or more, of %d bits", t.Bits())
	case reflect.Float32, reflect.Float64:
		return fmt.Sprintf("a number of %d bits", t.Bits())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a string of base64"
		}
		return "a list"
	case reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "another value"
}

// article completes the name that encoding/json has for a value: a bare kind, or "number 1e999".
func article(value string) string {
	switch kind, rest, _ := strings.Cut(value, " "); {
	case kind == "bool":
		return "true or false"
	case kind == "array":
		return "a list"
	case rest != "":
		return rest
	case kind == "object":
		return "an object"
	}
	return "a " + value
}
