package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// configMaps are the ones that kubeadm keeps the cluster's configuration in.
var configMaps = []struct{ namespace, name string }{
	{metav1.NamespaceSystem, "kubeadm-config"},
	{metav1.NamespaceSystem, "kubelet-config"},
	{metav1.NamespaceSystem, "kube-proxy"},
	{metav1.NamespaceSystem, "coredns"},
	{metav1.NamespacePublic, "cluster-info"},
}

// writeConfig writes kubeadm's ConfigMaps and gives the ClusterConfiguration, "" when there is none.
func writeConfig(ctx context.Context, client kubernetes.Interface, d *dirWriter) (Part, string, error) {
	part := Part{Name: "config", Status: PartComplete}
	clusterConfiguration := ""
	found := 0
	for _, c := range configMaps {
		cm, err := asked(ctx, func() (*corev1.ConfigMap, error) {
			return client.CoreV1().ConfigMaps(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
		})
		if apierrors.IsNotFound(err) {
			continue
		}
		name := "ConfigMap " + c.namespace + "/" + c.name
		if err != nil {
			if err := part.tolerate(ctx, name, err); err != nil {
				return part, "", err
			}
			continue
		}
		if c.name == "kubeadm-config" {
			clusterConfiguration = cm.Data["ClusterConfiguration"]
		}
		cm.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		b, err := yaml.Marshal(cm)
		if err != nil {
			return part, "", fmt.Errorf("write %s: %w", name, err)
		}
		if err := d.writeFile("config/"+c.namespace+"_"+c.name+".yaml", false, b, "", 0); err != nil {
			return part, "", err
		}
		found++
	}
	if found == 0 && part.Status == PartComplete {
		part.Status, part.Detail = PartAbsent, "the cluster has none of kubeadm's ConfigMaps"
	} else {
		part.Detail = fmt.Sprintf("%d ConfigMaps", found)
	}
	return part, clusterConfiguration, nil
}

// releaseType is the type of the Secrets that Helm keeps releases in.
const releaseType = "helm.sh/release.v1"

// releasePage bounds a list request, in objects; release records go up to 1 MiB each.
const releasePage = 20

// writeReleases writes the records of Helm releases as they are stored, one JSON object a line.
func writeReleases(ctx context.Context, client kubernetes.Interface, d *dirWriter) (Part, error) {
	part := Part{Name: "releases", Status: PartComplete}
	n := 0
	secrets, err := writeLines(d, "releases/secrets.jsonl.zst", true, func(emit func(any) error) error {
		opts := metav1.ListOptions{LabelSelector: "owner=helm", FieldSelector: "type=" + releaseType, Limit: releasePage}
		return eachPage(opts, func(o metav1.ListOptions) (metav1.ListInterface, error) {
			l, err := asked(ctx, func() (*corev1.SecretList, error) { return client.CoreV1().Secrets("").List(ctx, o) })
			if err != nil {
				return nil, err
			}
			for i := range l.Items {
				l.Items[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
				if err := emit(&l.Items[i]); err != nil {
					return nil, err
				}
			}
			return l, nil
		})
	})
	if err = part.tolerate(ctx, "Secrets of Helm releases", err); err != nil {
		return part, err
	}
	n += secrets
	// The driver that keeps them in ConfigMaps is rare but part of Helm.
	maps, err := writeLines(d, "releases/configmaps.jsonl.zst", true, func(emit func(any) error) error {
		opts := metav1.ListOptions{LabelSelector: "owner=helm", Limit: releasePage}
		return eachPage(opts, func(o metav1.ListOptions) (metav1.ListInterface, error) {
			l, err := asked(ctx, func() (*corev1.ConfigMapList, error) { return client.CoreV1().ConfigMaps("").List(ctx, o) })
			if err != nil {
				return nil, err
			}
			for i := range l.Items {
				if _, ok := l.Items[i].Data["release"]; !ok {
					continue
				}
				l.Items[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
				if err := emit(&l.Items[i]); err != nil {
					return nil, err
				}
			}
			return l, nil
		})
	})
	if err = part.tolerate(ctx, "ConfigMaps of Helm releases", err); err != nil {
		return part, err
	}
	n += maps
	if part.Status == PartComplete {
		part.Detail = fmt.Sprintf("%d records", n)
	}
	return part, nil
}

// tolerate turns what could not be read into an entry of Missing; an error that ends the backup is given back.
func (p *Part) tolerate(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case fatal(ctx, err):
		return fmt.Errorf("read %s: %w", what, err)
	}
	why := err.Error()
	if apierrors.IsForbidden(err) {
		why = "forbidden"
	}
	p.Status = PartIncomplete
	p.Missing = append(p.Missing, what+": "+why)
	return nil
}

// eachPage calls list for every page of a list.
func eachPage(opts metav1.ListOptions, list func(metav1.ListOptions) (metav1.ListInterface, error)) error {
	for {
		l, err := list(opts)
		if err != nil {
			return err
		}
		if opts.Continue = l.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}

// writeLines writes a compressed file of JSON lines. A list whose continue
// token expires (410) is begun anew, and the file with it. A file without
// lines is not kept.
func writeLines(d *dirWriter, name string, secret bool, produce func(emit func(any) error) error) (int, error) {
	for restarts := 0; ; restarts++ {
		n, err := writeLinesOnce(d, name, secret, produce)
		if apierrors.IsResourceExpired(err) && restarts < maxRestarts {
			continue
		}
		return n, err
	}
}

func writeLinesOnce(d *dirWriter, name string, secret bool, produce func(emit func(any) error) error) (n int, err error) {
	w, err := d.create(name, secret)
	if err != nil {
		return 0, local(err)
	}
	defer func() { err = errors.Join(err, local(w.Abort())) }()
	z, err := newCompressor(w)
	if err != nil {
		return 0, local(err)
	}
	enc := json.NewEncoder(z)
	enc.SetEscapeHTML(false)
	err = produce(func(v any) error {
		n++
		return local(enc.Encode(v))
	})
	if err = errors.Join(err, local(z.Close())); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, nil // the deferred Abort removes it
	}
	return n, local(w.Close())
}

// readLines gives each line of a file that writeLines wrote.
func readLines(r io.Reader, each func(line []byte) error) error {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	b := bufio.NewReaderSize(z, 1<<20)
	for {
		line, err := b.ReadBytes('\n')
		if len(line) > 0 {
			if err := each(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// secretKind says whether objects of a resource hold secrets.
func secretKind(group, resource string) bool {
	return group == corev1.GroupName && resource == "secrets"
}

// mayHoldSecrets says whether objects of a resource are encrypted where
// something is: Helm keeps the values of releases in ConfigMaps, too, if told so.
func mayHoldSecrets(group, resource string) bool {
	return secretKind(group, resource) || group == corev1.GroupName && resource == "configmaps"
}
