//! Tests of the scripts: wrong arguments are an error before any work, no data is no success, and the workflow runs each step.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::workspace::workspace;

fn run(script: &str, arguments: &[&str], folder: &Path) -> Output {
    let script = workspace().join(script);
    let mut command = match script.extension() {
        Some(python) if python == "py" => {
            let mut command = Command::new("python3");
            command.arg(script);
            command
        }
        _ => Command::new(script),
    };
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn scripts_refuse_wrong_arguments_before_they_work() {
    let folder = tempfile::tempdir().unwrap();
    let compare = "gpufile/benches/compare.py";
    let loaders = "python/benches/compare_loaders.py";
    let wrong: &[(&str, &[&str])] = &[
        (".ci/aarch64", &["x"]),
        (".ci/commands", &["--x"]),
        (".ci/commands", &["a command that no page has"]),
        (".ci/debian", &["x"]),
        (".ci/dependents", &["x"]),
        (".ci/dist", &["x"]),
        (".ci/fresh", &["x"]),
        (".ci/oldest", &[]),
        (".ci/oldest-torch", &["x"]),
        (".ci/python", &["x"]),
        (".ci/run", &["x"]),
        (".ci/run", &["format", "x"]),
        (".ci/run", &["--list", "x"]),
        (".ci/sanitizers", &["ls"]),
        (".ci/sglang", &["x"]),
        (".ci/slow", &["x"]),
        (".ci/slow", &["fuzz", "x"]),
        (".ci/slow", &["--list", "x"]),
        (".ci/vllm", &["x"]),
        (compare, &["--file", "f"]),
        (compare, &["--file", "f", "--ours", "no-such-program"]),
        (compare, &["--file", "missing/f", "--ours", "true"]),
        (compare, &["--file", "f", "--ours", "true", "--rounds", "0"]),
        (compare, &["--file", "f", "--ours", "true", "--size", "0"]),
        (compare, &["--file", "f", "--ours", "true", "--cases", "no-such-case"]),
        (compare, &["--file", "f", "--ours", "true", "--json", "missing/lines.json"]),
        (loaders, &["--dir", "/dev/null", "--ours", "true"]),
        (loaders, &["--dir", "d", "--ours", "no-such-program"]),
        (loaders, &["--dir", "d", "--peers", ""]),
        ("gpufile/benches/peers/zarr_gds.py", &[]),
        ("gpufile/benches/peers/build.sh", &[]),
        ("python/benches/compare_programs.py", &[]),
        ("python/benches/compare_programs.py", &["d", "--programs", "nothing"]),
        ("python/benches/loaders.sh", &[]),
        ("python/benches/programs.py", &["run", "d", "nothing"]),
        ("python/tests/run_kvikio_tests.py", &[]),
        ("python/tests/run_kvikio_tests.py", &["missing"]),
        ("python/tests/run_torch_checkpoint_tests.py", &[]),
        ("python/tests/run_torch_checkpoint_tests.py", &["missing"]),
        ("python/tests/run_vllm_tests.py", &[]),
        ("python/tests/run_vllm_tests.py", &["missing"]),
    ];
    for (script, arguments) in wrong {
        let output = run(script, arguments, folder.path());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{script} {arguments:?}: {errors}");
        assert!(!errors.is_empty() && !errors.contains("Traceback"), "{script} {arguments:?}: {errors}");
        let made: Vec<_> = folder.path().read_dir().unwrap().collect();
        assert!(made.is_empty(), "{script} {arguments:?} made {made:?}");
    }
}

#[test]
fn the_workflow_runs_each_step() {
    let output = run(".ci/run", &["--list"], workspace());
    let steps = String::from_utf8(output.stdout).unwrap();
    let steps: Vec<_> = steps.lines().collect();
    assert!(steps.len() > 10, "{steps:?}");
    let script = std::fs::read_to_string(workspace().join(".ci/run")).unwrap();
    let functions = script.lines().filter(|line| line.starts_with("step-")).count();
    assert_eq!(steps.len(), functions, "each function is a step: {steps:?}");
    let workflow = std::fs::read_to_string(workspace().join(".github/workflows/ci.yml")).unwrap();
    assert!(workflow.contains(&format!("        step: [{}]\n", steps.join(", "))), "{steps:?}");
}

#[test]
fn comparisons_without_data_fail() {
    let folder = tempfile::tempdir().unwrap();
    let program = "import sys; sys.path.append(sys.argv[1]); import compare as c; \
                   assert [c.exit_status(set(v), f) for v, f in \
                   [({'PASS'}, []), ({'PASS', 'no data'}, []), ((), []), ({'fail'}, []), ({'PASS'}, ['x'])]] == [0, 3, 3, 1, 1]";
    let benches = workspace().join("gpufile/benches");
    let mut python = Command::new("python3");
    let output = python.args(["-B", "-c", program]).arg(benches).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
