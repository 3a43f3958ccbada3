package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"syscall"
)

// Exit codes of readScript. Words of the system depend on the machine's language.
const (
	codePermission = 43
	codeMissing    = 44
	codeDirectory  = 45
	codeNotDir     = 46
)

// readScript prints the file $1. It looks first, so that a missing file is told from an unreadable one.
const readScript = `if [ ! -e "$1" ]; then
d=$1
while [ -n "$d" ]; do
d=${d%/*}
if [ -e "${d:-/}" ]; then
[ -d "${d:-/}" ] || exit 46
[ -x "${d:-/}" ] || exit 43
break
fi
done
exit 44
fi
[ -d "$1" ] && exit 45
[ -r "$1" ] || exit 43
exec cat -- "$1"
`

func (h *sshHost) ReadFile(ctx context.Context, path string) ([]byte, error) {
	if err := checkPath("read", path); err != nil {
		return nil, fmt.Errorf("%s: %w", h.cfg.Name, err)
	}
	var b bytes.Buffer
	_, err := h.run(ctx, Cmd{
		Argv:   []string{"/bin/sh", "-c", readScript, "belay-read", path},
		Stdout: &b,
	}, []string{"read", path}, maxFileStderr)
	exit := (*ExitError)(nil)
	if errors.As(err, &exit) {
		reason := map[int]error{
			codePermission: syscall.EACCES, codeMissing: syscall.ENOENT,
			codeDirectory: syscall.EISDIR, codeNotDir: syscall.ENOTDIR,
		}[exit.Code]
		if reason != nil {
			return nil, fmt.Errorf("%s: %w", h.cfg.Name, &fs.PathError{Op: "read", Path: path, Err: reason})
		}
	}
	if err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// maxFileStderr bounds what is kept of a file script's streams: a message, never the file.
const maxFileStderr = 64 << 10

// writeScript replaces the file $1 (mode $2, $3 bytes) by its standard input: temporary file in
// the same directory ($4 makes its name unique), size, fsync, rename, fsync of the directory. However it ends, the temporary file goes:
// its name is known before it is made, which mktemp could not give, and cat runs in the background, since a shell that waits for a foreground
// program runs its traps only after that program's end. mv -T, since mv into a directory of that name would be silent.
const writeScript = `set -u
d=${1%/*}
umask 022
mkdir -p -- "${d:-/}" || exit 1
umask 077
t="$d/.${1##*/}.part-$4"
trap 'rm -f -- "$t"' EXIT
trap 'exit 1' HUP INT PIPE TERM
set -C
exec 3<&0 4>"$t"
cat <&3 >&4 &
wait $! || exit 1
exec 4>&-
n=$(wc -c <"$t") || exit 1
if [ "$n" -ne "$3" ]; then echo "received $n of $3 bytes" >&2; exit 1; fi
chmod -- "$2" "$t" || exit 1
sync -- "$t" 2>/dev/null || sync || exit 1
mv -fT -- "$t" "$1" || exit 1
sync -- "${d:-/}" 2>/dev/null || sync
`

func (h *sshHost) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return h.Upload(ctx, path, bytes.NewReader(data), int64(len(data)), mode)
}

func (h *sshHost) Upload(ctx context.Context, path string, r io.Reader, size int64, mode fs.FileMode) error {
	if err := checkPath("write", path); err != nil {
		return fmt.Errorf("%s: %w", h.cfg.Name, err)
	}
	_, err := h.run(ctx, Cmd{
		Argv:  []string{"/bin/sh", "-c", writeScript, "belay-write", path, fmt.Sprintf("%04o", mode.Perm()), strconv.FormatInt(size, 10), rand.Text()},
		Stdin: &exactly{r: r, size: size},
	}, []string{"write", path}, maxFileStderr)
	if err == nil {
		return nil
	}
	// A source that broke never had its end announced, so the file cannot have been replaced: nothing is unknown here.
	if in := (*inputError)(nil); errors.As(err, &in) {
		return fmt.Errorf("%s: write %s: %w", h.cfg.Name, path, in.err)
	}
	return err
}
