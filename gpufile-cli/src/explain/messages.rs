//! The messages of gpufile and cufile that are not about a code: a pattern for each, in which `*` stands for any text.

use super::{CHECK, Entry, fits};

/// Patterns in lower case, and what is known about the messages.
type Row = (&'static [&'static str], Entry);

const fn row(
    patterns: &'static [&'static str],
    meaning: &'static str,
    cause: &'static str,
    remedy: &'static str,
    proof: &'static str,
) -> Row {
    (patterns, Entry { meaning, cause, remedy, proof })
}

const LIST: &str = "`gpufile ls MODEL` lists its tensors and their shapes";
const VERIFY: &str = "`gpufile verify MODEL` lists everything that is wrong with it";

/// The rows in the order in which they are tried.
pub const TABLE: &[Row] = &[
    row(
        &["the file ends at byte *"],
        "the range goes beyond the end of the file",
        "the file is shorter than expected: it is still being written, or the download is incomplete",
        "read only what is there, or get the file again",
        "`stat FILE` shows its length; for a model, `gpufile verify MODEL`",
    ),
    row(
        &["the read ended at byte *, although the file has *"],
        "no bytes came from the middle of the file",
        "a network or FUSE file system, or cuFile, returned 0 as at the end of the file",
        "read again; set GPUFILE_COMPAT_MODE=on to read without cuFile",
        "`gpufile bench FILE -I read -x posix,cufile` compares both",
    ),
    row(
        &["cufile is required, but does not work here*"],
        "the program or GPUFILE_COMPAT_MODE=off requires cuFile, and the file cannot have it",
        "no libcufile or no driver, or a file system that libcufile does not take",
        "unset GPUFILE_COMPAT_MODE, or cure the reason after the colon",
        CHECK,
    ),
    row(
        &["*has no function *"],
        "the library is another one, or older than any supported version",
        "a variable such as CUFILE_LIBRARY names a wrong file, or an old CUDA is found first",
        "unset the variable, or install a supported version",
        "`gpufile check --verbose` lists the files that were tried",
    ),
    row(
        &["*is from cuda *, but the display driver supports only *"],
        "the CUDA runtime is newer than the display driver",
        "pip or the container brought a newer libcudart than the host's driver",
        "update the display driver, or set CUDART_LIBRARY to an older libcudart",
        "`gpufile check` shows both versions",
    ),
    row(
        &["*the transfer failed; libcufile gave no code*"],
        "libcufile reported -1 and no reason",
        "a stream-ordered or batch transfer failed: its file or memory went away, or the storage failed it",
        "read libcufile's log; make the same transfer with a plain read to get a code",
        "`gpufile check --try PATH`, with CUFILE_LOGGING_LEVEL=TRACE",
    ),
    row(
        &["no cuda device is visible*"],
        "CUDA works, but shows no GPU",
        "CUDA_VISIBLE_DEVICES is empty or names no GPU of this machine",
        "unset CUDA_VISIBLE_DEVICES, or start the container with GPUs",
        "`nvidia-smi -L` lists the GPUs",
    ),
    row(
        &["*needs cufile * or newer; the loaded libcufile is *"],
        "the loaded libcufile lacks the call",
        "an older libcufile is found first",
        "install a newer one (pip install -U nvidia-cufile), and set CUFILE_LIBRARY to it",
        "`gpufile check` shows the version and the file",
    ),
    row(
        &["*is still in use (* other references)"],
        "an object was to be closed while others use it",
        "a file, a buffer, a stream or a transfer of it still lives",
        "drop or close these first",
        "the list of live objects in a debugger",
    ),
    row(
        &["cuda or cufile was used before fork()*"],
        "the process is a fork of one that used CUDA, and CUDA does not work in it",
        "multiprocessing with the method fork, or a server that forks after loading a model",
        "use the method spawn, fork before the first use of CUDA, or call exec",
        "the same program without the fork works",
    ),
    row(
        &["cannot write the output: *"],
        "the standard output cannot be written",
        "its disk is full, or it was closed",
        "free space, or write elsewhere",
        "`df -h`",
    ),
    row(
        &["cannot save *: *", "*left behind*"],
        "a file could not be saved; the message says whether the old or the new contents are in place",
        "no space, no permission, a link or a device in the place of the file, or a lock that another process holds",
        "cure the cause after the colon and save again, which removes leftovers",
        "`df -h FOLDER`, `ls -la FOLDER`; saves.md lists what each failure leaves",
    ),
    row(
        &["cannot allocate * bytes to load *"],
        "there is no memory to load the model into",
        "the GPU or the container is too small, or another process holds the memory",
        "free memory, load a part (only=…), or place the model on several GPUs",
        "`nvidia-smi` shows who holds the memory of the GPU",
    ),
    row(
        &["cannot create a buffer for tensor *"],
        "the caller's function gave no buffer",
        "the framework has no memory left, or does not have the type",
        "see the error after the colon",
        LIST,
    ),
    row(
        &["cannot copy tensors of * from gpu * to other gpus: *"],
        "a tensor reached one GPU, but not the others",
        "a GPU without free memory, or a broken link between the GPUs",
        "free memory; read to each GPU instead",
        "`nvidia-smi topo -m` shows how the GPUs are connected",
    ),
    row(
        &["*nccl's code *", "*install nccl *"],
        "NCCL failed or is missing",
        "libnccl is not installed, the ranks do not reach each other, or one of them ended",
        "install NCCL 2.14 or newer; NCCL_DEBUG=INFO prints its reason",
        "the log of each rank with NCCL_DEBUG=INFO",
    ),
    row(
        &[
            "*together with other ranks*",
            "rank * of * waited *",
            "rank * failed: *",
            "rank * asked for other tensors *",
            "an earlier error closed the rank group*",
            "rank *: *",
        ],
        "the ranks could not load together",
        "one of them failed or stopped, or asked for something else",
        "look at the log of the rank that failed first, then start all again",
        "the logs of all ranks, by time",
    ),
    row(
        &["the store does not have the block", "the block is corrupt, and was removed from the store"],
        "the block store has no whole block with this key",
        "it was never stored, was evicted or removed, or its file has changed",
        "compute the block again, and store it",
        "`BlockStore::recovery` counts what the store lost before it was opened",
    ),
    row(
        &[
            "the store has no room: all its blocks are being read or written",
            "some of the block's memory is in use by another transfer",
        ],
        "other transfers still use the slots of the store, or the memory of the block",
        "more blocks in flight than the store has, or a storage that has not answered a cancelled transfer",
        "wait for earlier transfers, or raise limit_bytes",
        "`Region::bytes_in_use` shows what transfers use",
    ),
    row(
        &["the deadline of the block has passed", "the transfer of the block was cancelled"],
        "the block was given up before the storage had answered",
        "a short deadline, a call of cancel, or a slow storage",
        "use its memory again only when the region shows it free",
        "`gpufile check --try PATH` shows whether the storage answers",
    ),
    row(
        &["the load of * was cancelled by its callback"],
        "the caller's function ended the load",
        "it returned an error or asked to stop",
        "nothing, if that was intended",
        "the code of the callback",
    ),
    row(
        &["*its sha-256 is * instead of *"],
        "the contents are not those of the model",
        "a damaged or changed download",
        "download the file again",
        "`gpufile verify MODEL --contents`",
    ),
    row(
        &[
            "*incomplete download*",
            "tensor * not in *, which * names*",
            "*and * more are not in *",
            "*has several models*",
            "not a file of this split model: *",
            "*has no safetensors files*",
            "cannot open * and * as one model*",
        ],
        "the folder is not exactly one whole model",
        "an unfinished download, a stale index, files of several models, or a format that is not safetensors",
        "download again, or name the file or the index of one model",
        VERIFY,
    ),
    row(
        &[
            "there is no tensor *",
            "*the buffer for * has * bytes instead of *",
            "*cannot read * to * of axis *",
            "*cannot slice axis *",
            "*cannot place it on gpu *",
            "cannot read rows of an array in fortran order*",
            "the region * is not within shape *",
            "tensor *: bits * to * are not whole bytes",
        ],
        "the request does not fit the tensor",
        "a wrong name, axis, range, GPU or length of a buffer",
        "ask for what the tensor has",
        LIST,
    ),
    row(
        &[
            "not * data: it does not start with *",
            "not * data but *",
            "version * of the * format is not supported",
        ],
        "the file has another format than its name says",
        "a page of an error, a pointer of git LFS, a pickle or another format was saved under this name",
        "download the file again, or convert it",
        "`head -c 64 FILE | xxd` shows how it begins",
    ),
    row(
        &["*the element type *"],
        "the type of the elements is unknown or unsupported",
        "a newer or rarer type than this version reads",
        "convert the tensor, or load the others (only=…)",
        LIST,
    ),
    row(
        &[
            "* ends at byte *, but there are only *",
            "a * header of * bytes is over the limit *",
            "*at byte * of the * file: *",
            "*occurs twice*",
            "*is missing*",
            "*shape times element size *",
            "*makes the file longer than *",
            "*shape and type say *",
            "*run backwards*",
            "*it ends at byte * of the data*",
            "*it starts at byte * of the file, inside *",
            "*belong to no tensor*",
            "a tensor cannot be called *",
            "*leads out of the folder of the index*",
        ],
        "the file is damaged, incomplete or not allowed by its format",
        "an unfinished download, a program that wrote it wrongly, or a file that was made to do harm",
        "download or write it again; do not use it otherwise",
        VERIFY,
    ),
    row(
        &["cannot open the array: *", "* are not supported", "the file of chunk * has *", "chunk *: *"],
        "a Zarr array cannot be used",
        "a codec or a type that is not supported, or damaged metadata or chunks",
        "write the array with supported codecs, or restore the chunk",
        "`gpufile ls STORE`, built with the feature zarr",
    ),
    row(
        &["the server answered with status *"],
        "the server of an object refused the request, also when it was repeated",
        "401 and 403: missing, wrong or expired credentials; 404: no such object; 429 and 503: the server is busy",
        "renew a signed address or the header with the credentials; for 429 and 503, use fewer threads or more tries",
        "`curl -r 0-0 -D - URL` shows the same status",
    ),
    row(
        &["the object changed on the server after it was opened"],
        "the ETag, the time of change or the length of an object differs from when it was opened",
        "the object was replaced, or several servers of one address have different versions",
        "open it again",
        "`curl -I URL`, twice, shows the ETag",
    ),
    row(
        &["the server's answer cannot be used: *"],
        "the answer does not have the bytes that were asked for, or is no HTTP",
        "a server without ranges, such as `python3 -m http.server`; a proxy that changes answers; another service on the port",
        "serve the object by a server that sends ranges, or download it first",
        "`gpufile check URL`; `curl -r 0-0 -D - URL` shows status 206 and Content-Range where it works",
    ),
    row(
        &["the certificate of the server is not accepted: *"],
        "the server of an object may be another one than its address says",
        "a private authority, no authorities on this machine, an expired certificate, or a name that it does not have",
        "install the package ca-certificates, or name the authority with SSL_CERT_FILE or RemoteOptions::trust",
        "`curl -v URL` refuses the certificate too",
    ),
    row(
        &["the address of the object cannot be signed: *"],
        "no credentials for an object of S3 were found",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and this is no machine with a role",
        "set them, or open a signed address with https",
        "`env | grep AWS_`; `aws s3 ls` shows whether the credentials work",
    ),
    row(
        &["the request cannot be made: *"],
        "the address of an object, or a header, has a wrong form",
        "a misspelt URL, a scheme that is not supported, or a user and a password in the URL",
        "correct it; pass credentials as a header",
        "`curl URL` refuses most of them too",
    ),
    row(
        &[
            "the environment variable * is *: expected *",
            "*set the same setting to different values*",
            "* is *: expected *",
            "cannot parse * as a size: *",
        ],
        "a setting has a value that is not accepted",
        "a misspelt value, or a unit such as MB",
        "set it to an accepted value, or unset it; settings.md lists the values",
        "`gpufile check` shows the variables that are set",
    ),
    row(
        &["cannot * bytes at * of *: *", "cannot * bytes at * of *: *; * bytes were transferred"],
        "a transfer failed; the cause follows the name of the file",
        "see the code or the words after the colon",
        "explain that part alone: `gpufile explain 'WHAT FOLLOWS THE COLON'`",
        "`gpufile check --try PATH` transfers 1 MiB",
    ),
    row(
        &["cannot * \"*\": *", "cannot open *: *"],
        "an operation on the file failed; the cause follows the colon",
        "see the code or the words after the colon",
        "explain that part alone: `gpufile explain 'WHAT FOLLOWS THE COLON'`",
        "`gpufile check PATH`",
    ),
    row(
        &["cufile*: *", "cu*: *", "copy: *", "grow: *", "properties: *", "synced::new: *"],
        "the call that the message begins with failed or was refused before it was made; the reason follows the colon",
        "an argument, a state or an order that the call does not allow",
        "follow the words after the colon",
        "`gpufile check --try PATH` shows whether plain transfers work here",
    ),
    row(
        &["entry *: *", "tensor *: *"],
        "one entry of a list, or one tensor of a model, could not be transferred; the cause follows the colon",
        "see the code or the words after the colon",
        "explain that part alone: `gpufile explain 'WHAT FOLLOWS THE COLON'`",
        VERIFY,
    ),
];

/// Returns what is known about a message in lower case: the first row that fits.
pub fn of(message: &str) -> Option<&'static Entry> {
    let row = TABLE.iter().find(|(patterns, _)| patterns.iter().any(|pattern| fits(pattern, message)));
    row.map(|(_, entry)| entry)
}
