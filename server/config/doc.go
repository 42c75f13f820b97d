// Package config is the one description of every setting of the server: the struct, its
// defaults, the TOML file it is read from, the checks, and the text of what is in effect.
//
// A value comes from, each over the one before: [Default], the file ([Load]), flags
// ([Config.Set]). Nothing is read from the environment. Then [Config.Validate] checks the
// whole, and only then may it be used:
//
//	cfg, err := config.Load("shivad.toml")    // all unknown keys and wrong types, with lines
//	err = cfg.Set("tcp.listen", ":0", "--tcp")
//	err = cfg.Validate()                      // all bounds and rules between settings, likewise
//
// A program that embeds the server starts from Default and changes fields. The zero Config is
// not valid: zero means "off" or "none" wherever a field's comment says so, never "the
// default".
//
// In the file a duration is a string as Go writes it ("30s", "1m30s", "250ms"), a size is an
// integer (bytes) or a string with a unit ("256MiB", "1.5GiB", "64kB"). A key that is not
// known, of a wrong type or out of range is an error that names file, line, column and key, and
// says what was expected and what was received. Every number, size and duration has a lower and an
// upper bound.
//
// A Config is a plain value. Nothing in it is safe to change while another goroutine reads it.
package config
