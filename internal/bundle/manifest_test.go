package bundle

import (
	"bytes"
	"strings"
	"testing"
)

const goodSum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func manifestJSON(files string) string {
	return `{"schema":"belay.dev/bundle/v1","kubernetes":"v1.36.3","arch":"amd64","source":"gomod","official":false,"components":[],"files":[` + files + `]}`
}

func fileJSON(path, kind, extra string) string {
	return `{"path":"` + path + `","kind":"` + kind + `","component":"c","version":"v1","size":0,"sha256":"` + goodSum + `","from":"x"` + extra + `}`
}

func TestDecodeManifest(t *testing.T) {
	image := `,"ref":"r/i:1","role":"etcd"`
	for _, c := range []struct{ name, in, want string }{
		{"empty", manifestJSON(""), ""},
		{"binary and image", manifestJSON(fileJSON("bin/cni/bridge", "binary", "") + "," + fileJSON("images/e.tar", "image", image)), ""},
		{"not JSON", "kubeadm", "invalid character"},
		{"more after it", manifestJSON("") + "{}", "more data"},
		{"unknown field", strings.Replace(manifestJSON(""), `"arch"`, `"extra":1,"arch"`, 1), "extra"},
		{"other schema", strings.Replace(manifestJSON(""), "v1", "v2", 1), "schema"},
		{"no version", strings.Replace(manifestJSON(""), "v1.36.3", "", 1), "no version"},
		{"official but built", strings.Replace(manifestJSON(""), "false", "true", 1), "not official"},
		{"unknown source", strings.Replace(manifestJSON(""), "gomod", "usb", 1), "usb"},
		{"architecture with a path", strings.Replace(manifestJSON(""), "amd64", "../x", 1), "architecture"},
		{"absolute path", manifestJSON(fileJSON("/etc/passwd", "binary", "")), "/etc/passwd"},
		{"path that climbs", manifestJSON(fileJSON("bin/../../x", "binary", "")), "bin/../../x"},
		{"path to a directory", manifestJSON(fileJSON("bin/", "binary", "")), "bin/"},
		{"the manifest itself", manifestJSON(fileJSON("manifest.json", "binary", "")), "manifest.json"},
		{"twice", manifestJSON(fileJSON("bin/a", "binary", "") + "," + fileJSON("bin/a", "binary", "")), "twice"},
		{"image without reference", manifestJSON(fileJSON("images/e.tar", "image", "")), "ref or role"},
		{"binary among the images", manifestJSON(fileJSON("images/e", "binary", "")), "does not belong"},
		{"short sum", manifestJSON(strings.Replace(fileJSON("bin/a", "binary", ""), goodSum, "abcd", 1)), "abcd"},
		{"negative size", manifestJSON(strings.Replace(fileJSON("bin/a", "binary", ""), `"size":0`, `"size":-1`, 1)), "negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DecodeManifest([]byte(c.in))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add([]byte(manifestJSON("")))
	f.Add([]byte(manifestJSON(fileJSON("bin/kubeadm", "binary", ""))))
	f.Add([]byte(manifestJSON(fileJSON("images/etcd-3.6.8-0.tar", "image", `,"ref":"registry.k8s.io/etcd:3.6.8-0","role":"etcd"`))))
	f.Add([]byte(manifestJSON(fileJSON("bin/../x", "binary", ""))))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeManifest(data)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if strings.Contains("/"+file.Path+"/", "/../") || !strings.HasPrefix(file.Path, "bin/") && !strings.HasPrefix(file.Path, "images/") {
				t.Fatalf("accepted path %q", file.Path)
			}
		}
		first, err := m.Encode()
		if err != nil {
			t.Fatalf("a manifest that was read cannot be written: %v", err)
		}
		again, err := DecodeManifest(first)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		second, err := again.Encode()
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("not stable: %v\n%s\n%s", err, first, second)
		}
	})
}
