//! The names of KvikIO for settings of gpufile.

/// A setting that KvikIO has too.
#[derive(Debug)]
pub struct KvikioSetting {
    /// The setting, by the name of its field in [`Settings`](super::Settings).
    pub setting: &'static str,
    /// The variable of gpufile.
    variable: &'static str,
    /// The variables that users of KvikIO already set. Their values must agree.
    variables: &'static [&'static str],
    /// The name in `kvikio.defaults`.
    pub name: &'static str,
}

/// All settings that KvikIO has too. The Python package reads this table as well.
pub static KVIKIO_SETTINGS: [KvikioSetting; 8] = [
    KvikioSetting {
        setting: "policy",
        variable: "GPUFILE_COMPAT_MODE",
        variables: &["KVIKIO_COMPAT_MODE"],
        name: "compat_mode",
    },
    KvikioSetting {
        setting: "threads",
        variable: "GPUFILE_NUM_THREADS",
        variables: &["KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"],
        name: "num_threads",
    },
    KvikioSetting {
        setting: "chunk_bytes",
        variable: "GPUFILE_CHUNK_SIZE",
        variables: &["KVIKIO_TASK_SIZE"],
        name: "task_size",
    },
    KvikioSetting {
        setting: "gds_threshold_bytes",
        variable: "GPUFILE_GDS_THRESHOLD",
        variables: &["KVIKIO_GDS_THRESHOLD"],
        name: "gds_threshold",
    },
    KvikioSetting {
        setting: "bounce_buffer_bytes",
        variable: "GPUFILE_BOUNCE_BUFFER_SIZE",
        variables: &["KVIKIO_BOUNCE_BUFFER_SIZE"],
        name: "bounce_buffer_size",
    },
    KvikioSetting {
        setting: "direct_read",
        variable: "GPUFILE_DIRECT_READ",
        variables: &["KVIKIO_AUTO_DIRECT_IO_READ"],
        name: "auto_direct_io_read",
    },
    KvikioSetting {
        setting: "direct_write",
        variable: "GPUFILE_DIRECT_WRITE",
        variables: &["KVIKIO_AUTO_DIRECT_IO_WRITE"],
        name: "auto_direct_io_write",
    },
    KvikioSetting {
        setting: "overread",
        variable: "GPUFILE_DIRECT_READ_OVERREAD",
        variables: &["KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD"],
        name: "auto_direct_io_read_overread",
    },
];

/// Returns KvikIO's names for a variable of gpufile.
pub(super) fn names_of(variable: &str) -> &'static [&'static str] {
    let row = KVIKIO_SETTINGS.iter().find(|row| row.variable == variable);
    row.map_or(&[], |row| row.variables)
}

#[cfg(test)]
mod tests {
    use super::super::VARIABLES;
    use super::*;

    #[test]
    fn each_row_has_a_variable_and_a_name_of_kvikio() {
        for KvikioSetting { variable, variables, name, .. } in &KVIKIO_SETTINGS {
            assert!(VARIABLES.iter().any(|known| known.name == *variable), "{variable}");
            let of_kvikio = format!("KVIKIO_{}", name.to_uppercase());
            assert!(variables.contains(&&*of_kvikio), "{of_kvikio}");
        }
    }
}
