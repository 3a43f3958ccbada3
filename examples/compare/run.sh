#!/usr/bin/env bash
# Runs belay, pluto, kubent and kubepug on the same files, prints which of them names what each file holds, and below that
# the words in which it does: a right name may stand beside a wrong minor.
#
#   examples/compare/run.sh            the tools that are in PATH
#   INSTALL=1 examples/compare/run.sh  fetches those that are not, in the versions below (Linux, amd64 or arm64)
#
# A tool that cannot be had is left out of the table, and said so. helm mapkubeapis reads releases in clusters, not files,
# so it has no column. kubepug fetches its rules from the network at each run.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${FROM:=1.15}" "${TO:=1.37}" "${INSTALL:=}" "${OUT:=$(mktemp -d)}"
: "${PLUTO_VERSION:=5.22.8}" "${KUBENT_VERSION:=0.7.3}" "${KUBEPUG_VERSION:=1.7.1}"
files=apicheck/testdata/compare

# What a scanner should name in each file; a name with ! must not be reported.
holds='
servicecidr          ServiceCIDR
admission-policy     ValidatingAdmissionPolicy
device-class         DeviceClass
autoscaler           HorizontalPodAutoscaler
pod-security-policy  PodSecurityPolicy
flow-schema          FlowSchema
events               Event
list-in-list         CronJob
never-existed        ReplicaSet
certificate          CronJob
template             CronJob
role                 Ingress
payload              PodDisruptionBudget
git-repo             gitRepo
other-group          !Ingress
'

mkdir -p "$OUT/bin"
: >"$OUT/words.txt"
PATH=$PATH:$OUT/bin
arch=$(uname -m)
case $arch in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; esac

fetch() { # tool, address of an archive with it
  command -v "$1" >/dev/null && return
  [ -n "$INSTALL" ] || return 0
  echo "fetching $2" >&2
  if ! curl -fsSL --retry 3 "$2" -o "$OUT/$1.tar.gz" || ! tar -xzf "$OUT/$1.tar.gz" -C "$OUT/bin" "$1"; then
    echo "compare: cannot fetch $1" >&2
  fi
}
fetch pluto "https://github.com/FairwindsOps/pluto/releases/download/v$PLUTO_VERSION/pluto_${PLUTO_VERSION}_linux_$arch.tar.gz"
fetch kubent "https://github.com/doitintl/kube-no-trouble/releases/download/$KUBENT_VERSION/kubent-$KUBENT_VERSION-linux-$arch.tar.gz"
fetch kubepug "https://github.com/kubepug/kubepug/releases/download/v$KUBEPUG_VERSION/kubepug_linux_$arch.tar.gz"
if ! command -v belay >/dev/null; then
  go build -o "$OUT/bin/belay" ./cmd/belay
fi

scan() { # tool, file
  case $1 in
    belay) belay api scan --from "$FROM" --to "$TO" -f "$2" ;;
    pluto) pluto detect "$2" -o wide --target-versions "k8s=v$TO.0" ;;
    kubent) kubent --cluster=false --helm3=false --target-version "$TO" --filename "$2" ;;
    kubepug) kubepug --k8s-version "v$TO.0" --input-file "$2" ;;
  esac
}

# The exit codes of a run that did its work, whatever it found.
good() {
  case $1:$2 in *:0 | belay:3 | belay:6 | pluto:2 | pluto:3) ;; *) return 1 ;; esac
}

tools=()
for tool in belay pluto kubent kubepug; do
  if command -v "$tool" >/dev/null; then
    tools+=("$tool")
  else
    echo "compare: no $tool in PATH: left out" >&2
  fi
done

{
  printf '| file | holds |'
  printf ' %s |' "${tools[@]}"
  printf '\n|---|---|'
  printf '%.0s---|' "${tools[@]}"
  echo
  while read -r name kind; do
    [ -n "$name" ] || continue
    printf '| `%s` | %s |' "$name" "${kind/\!/no }"
    for tool in "${tools[@]}"; do
      text=$OUT/$name.$tool.txt status=0
      scan "$tool" "$files/$name.yaml" >"$text" 2>&1 </dev/null || status=$?
      cell="says nothing"
      if ! good "$tool" "$status"; then
        cell="failed, exit $status"
      elif grep -qw -- "${kind#!}" "$text"; then
        cell="names it"
        printf '%s, %s: %s\n' "$name" "$tool" "$(grep -hwm1 -- "${kind#!}" "$text" | tr -s ' ')" >>"$OUT/words.txt"
      fi
      if [ "$tool" = belay ] && [ "$status" -eq 6 ]; then
        cell="$cell, exit 6: not all read"
      fi
      printf ' %s |' "$cell"
    done
    echo
  done <<<"$holds"
  echo
  cat "$OUT/words.txt"
} | tee "$OUT/table.md"
echo "What each printed: $OUT" >&2
