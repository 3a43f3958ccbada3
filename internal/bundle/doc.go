// Package bundle makes, finds and verifies bundles: one directory with every
// binary and container image that one Kubernetes version needs, with sums.
//
// A bundle comes from the public release sites, or is built from Go modules
// where those cannot be reached; the manifest says which, and only the former
// is the official release. Which etcd, CoreDNS and pause belong to a version is
// asked of that version's own kubeadm.
//
// Layout of a bundle, <root>/<version>-<arch>/:
//
//	manifest.json   written last; a directory without one is not a bundle
//	bin/            kubeadm, kubelet, kubectl, containerd, runc, etcd, kube-apiserver ...
//	bin/cni/        the CNI plugins
//	images/         one OCI image archive per image
//
// While it is being made it lies in <root>/<version>-<arch>.partial/, where
// every finished file has a record, so that an interrupted build goes on from
// there.
package bundle
