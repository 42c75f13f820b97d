// Package config is the one description of every setting of the server: the struct, its defaults,
// the TOML file that it is read from, the checks, and the text of the configuration in effect.
//
// Values come from [Default], then the file ([Load]), then flags ([Config.Set]), each overriding
// the one before. Nothing is read from the environment. [Config.Validate] then checks the whole; do
// not use a Config before:
//
//	cfg, err := config.Load("shivad.toml")    // all unknown keys and wrong types, with lines
//	err = cfg.Set("tcp.listen", ":0", "--tcp")
//	err = cfg.Validate()                      // all bounds and rules between settings
//
// A program that embeds the server starts from Default and changes fields. The zero Config is not
// valid: zero means "off" or "none" where a field's comment says so, never "the default".
//
// In the file a duration is a string as Go writes it ("30s", "1m30s", "250ms"), a size is an
// integer (bytes) or a string with a unit ("256MiB", "1.5GiB", "64kB"). A key that is unknown, of a
// wrong type or out of range is an error with file, line, column and key, what was expected and
// what was found. Every number, size and duration has a lower and an upper bound.
//
// A Config is a plain value, which must not change while another goroutine reads it.
package config
