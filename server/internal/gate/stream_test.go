package gate

import "testing"

func TestClientOf(t *testing.T) {
	for peer, want := range map[string]string{
		"10.1.2.3:4567":             "10.1.2.3",
		"[::ffff:10.1.2.3]:4567":    "10.1.2.3",
		"127.0.0.1:1":               "127.0.0.1",
		"[::1]:1":                   "127.0.0.1",
		"127.0.0.2:1":               "127.0.0.2",
		"[2001:db8:1:2:3:4:5:6]:99": "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:99": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:99":         "fe80::/64",
		"/run/shivad.sock":          "/run/shivad.sock",
		"uid=1000,pid=4711":         "uid=1000",
		"":                          "",
	} {
		if got := ClientOf(peer); got != want {
			t.Errorf("%s is %s, expected %s", peer, got, want)
		}
	}
}
