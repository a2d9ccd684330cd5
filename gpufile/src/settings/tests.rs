//! Tests of the settings: each row of the table, its documentation, and the texts of errors.

use std::collections::HashSet;
use std::os::unix::ffi::OsStringExt;

use super::table::{DEFAULT_BUFFER_BYTES, MOST_DEFAULT_THREADS};
use super::*;

fn from(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::from_lookup(&|name| {
        variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into())
    })
}

fn with(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::default();
    change(&mut settings);
    settings
}

fn names() -> impl Iterator<Item = (&'static str, &'static Setting)> {
    TABLE.iter().flat_map(|variable| variable.variables().map(move |name| (name, variable)))
}

#[test]
fn each_variable_changes_only_its_setting() {
    for (names, value, change) in SAMPLES {
        let expected = with(change);
        assert_ne!(expected, Settings::default(), "{names:?}: the sample must differ from the default");
        for name in *names {
            assert_eq!(from(&[(name, value)]), Ok(expected.clone()), "{name}");
        }
    }
    let sampled: HashSet<_> = SAMPLES.iter().flat_map(|(names, ..)| *names).copied().collect();
    assert_eq!(sampled, names().map(|(name, _)| name).collect(), "every variable has a sample");
    assert_eq!(sampled.len(), names().count(), "no variable sets two settings");
}

#[test]
fn each_name_of_kvikio_is_that_of_a_variable() {
    for Setting { kvikio, kvikio_variables, .. } in TABLE {
        assert!(
            kvikio.iter().all(|name| kvikio_variables.contains(&&*format!("KVIKIO_{}", name.to_uppercase())))
        );
    }
}

#[test]
fn stated_defaults_are_those_of_the_code() {
    let default = Settings::default();
    for variable in TABLE {
        let stated = variable.default;
        match stated.strip_prefix('`').and_then(|code| code.strip_suffix('`')) {
            Some(code) => assert_eq!(from(&[(variable.variable, code)]).as_ref(), Ok(&default), "{stated}"),
            None if variable.name == "threads" => {
                assert_eq!(stated, format!("one for each processor, at most {MOST_DEFAULT_THREADS}"));
            }
            None => {
                let none = format!("{}: None", variable.name);
                assert!(format!("{default:?}").contains(&none), "{none} is not the default");
            }
        }
        if variable.name == "bounce_memory_bytes" {
            assert!(stated.ends_with(&format!("at most 1/{SHARES} of the available memory")));
        }
    }
}

#[test]
fn documentation_of_threads_has_the_limits() {
    let limit = LIMITS.iter().find(|limit| limit.name == "threads").unwrap();
    let limits = format!("from {}.", within(limit.least, limit.most));
    let threads = TABLE.iter().find(|setting| setting.name == "threads").unwrap();
    assert!(threads.docs.iter().any(|line| line.contains(&limits)), "{limits}");
}

#[test]
fn defaults_apply_without_variables() {
    let settings = from(&[]).unwrap();
    assert_eq!(settings, Settings::default());
    assert!((1..=MOST_DEFAULT_THREADS).contains(&settings.threads));
    assert_eq!(settings.chunk_bytes, None);
    assert_eq!(settings.bounce_buffer_bytes, 3584 << 10);
    let for_all = 2 * settings.threads * 2 * (4048 << 10);
    assert_eq!(settings.bounce_memory(u64::MAX), for_all);
    assert!(settings.bounce_memory_bytes() <= for_all);
    assert_eq!(settings.gds_threshold_bytes, 16 << 10);
    assert_eq!(settings.policy, RoutePolicy::Auto);
    assert_eq!((settings.direct_read, settings.direct_write), (DirectIo::Auto, DirectIo::Auto));
    assert!(settings.overread);
}

#[test]
fn bounce_memory_scales_and_holds_at_least_two_buffers() {
    let some = [("KVIKIO_NTHREADS", "3"), ("KVIKIO_BOUNCE_BUFFER_SIZE", "1M")];
    let pair = 2 * ((9 << 17) + (16 << 10));
    assert_eq!(from(&some).unwrap().bounce_memory(u64::MAX), 6 * pair);
    let given = |value| from(&[some[0], some[1], ("GPUFILE_BOUNCE_MEMORY", value)]).unwrap();
    assert_eq!(given("5M").bounce_memory_bytes(), 5 << 20);
    assert_eq!(given("1").bounce_memory_bytes(), pair);
    let most = [("GPUFILE_NUM_THREADS", "1024"), ("GPUFILE_BOUNCE_BUFFER_SIZE", "1GiB")];
    assert_eq!(from(&most).unwrap().bounce_memory(u64::MAX), 4 * 1024 * ((9 << 27) + (16 << 10)));
    for (name, more) in [("GPUFILE_NUM_THREADS", "1025"), ("GPUFILE_BOUNCE_BUFFER_SIZE", "1073741825")] {
        assert!(from(&[(name, more)]).is_err(), "{name}");
    }
}

#[test]
fn default_bounce_memory_is_a_share_of_available_memory() {
    const MB: u64 = 1_000_000;
    let settings = with(|settings| settings.threads = 64);
    let pair = 2 * Bounce::bytes_for(DEFAULT_BUFFER_BYTES);
    for (available, expected) in
        [(0, pair), (200 * MB, 12_500_000), (1000 * MB, 62_500_000), (u64::MAX, 128 * pair)]
    {
        assert_eq!(settings.bounce_memory(available), expected, "{available}");
    }
    let asked = with(|settings| settings.bounce_memory_bytes = Some(500_000_000));
    assert_eq!(asked.bounce_memory(200 * MB), 500_000_000);
}

#[test]
fn values_beyond_a_limit_are_named() {
    assert_eq!(Settings::default().check(), Ok(()));
    for limit in LIMITS {
        for (value, nearest) in [
            (limit.least, limit.least),
            (limit.most, limit.most),
            (limit.least.wrapping_sub(1), limit.least),
            (limit.most.saturating_add(1), limit.most),
        ] {
            let settings = with(|settings| (limit.set)(settings, value));
            assert_eq!(settings.check().is_ok(), value == nearest, "{} = {value}", limit.name);
            if let Err(error) = settings.check() {
                let text = error.to_string();
                assert!(text.starts_with(&format!("{} is {value}: expected ", limit.name)), "{text}");
                assert!(text.contains(&limit.least.to_string()), "{text}");
            }
            let clamped = settings.clamped();
            assert_eq!((limit.get)(&clamped), Some(nearest));
        }
    }
    let accepted = |setting| TABLE.iter().find(|row| row.name == setting).unwrap().accepted;
    let most = |setting| LIMITS.iter().find(|limit| limit.name == setting).unwrap().most;
    assert!(accepted("threads").ends_with(&format!("from 1 to {}", most("threads"))));
    assert!(
        most("bounce_buffer_bytes") == 1 << 30 && accepted("bounce_buffer_bytes").contains("up to 1 GiB")
    );
}

#[test]
fn sizes_accept_plain_bytes_and_units() {
    let mut sizes = 0;
    for (name, variable) in names().filter(|(_, variable)| variable.accepted.contains("64KiB")) {
        let in_bytes = from(&[(name, "2097152")]).unwrap();
        assert_ne!(in_bytes, Settings::default(), "{name}");
        for text in ["2MiB", "2M", "2 mib", "2048k", " 2097152 "] {
            assert_eq!(from(&[(name, text)]).unwrap(), in_bytes, "{name}={text}");
        }
        sizes += usize::from(variable.variable == name);
    }
    assert!(sizes > 0);
}

#[test]
fn words_ignore_case_and_surrounding_spaces() {
    let policy = |value| from(&[("KVIKIO_COMPAT_MODE", value)]).map(|settings| settings.policy);
    for value in ["ON", "on", "On", "TRUE", "true", "YES", "yes", "1", " on "] {
        assert_eq!(policy(value), Ok(RoutePolicy::PosixOnly), "{value}");
    }
    for value in ["OFF", "off", "FALSE", "False", "NO", "no", "0"] {
        assert_eq!(policy(value), Ok(RoutePolicy::RequireCufile), "{value}");
    }
    for value in ["AUTO", "auto", "Auto"] {
        assert_eq!(policy(value), Ok(RoutePolicy::Auto), "{value}");
    }
    for name in ["GPUFILE_DIRECT_READ", "KVIKIO_AUTO_DIRECT_IO_READ"] {
        let direct = |value| from(&[(name, value)]).map(|settings| settings.direct_read);
        for value in ["auto", "AUTO", "on", "true", "yes", "1"] {
            assert_eq!(direct(value), Ok(DirectIo::Auto), "{name}={value}");
        }
        for value in ["never", "off", "FALSE", "no", "0"] {
            assert_eq!(direct(value), Ok(DirectIo::Never), "{name}={value}");
        }
        assert_eq!(direct("Always"), Ok(DirectIo::Always), "{name}");
    }
    for (value, expected) in [("on", true), ("True", true), ("no", false), ("0", false)] {
        let settings = from(&[("KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD", value)]).unwrap();
        assert_eq!(settings.overread, expected, "{value}");
    }
}

#[test]
fn gpufile_variables_override_kvikio_variables() {
    for (names, value, change) in SAMPLES {
        for other in &names[1..] {
            let settings = from(&[(names[0], value), (other, "nonsense")]);
            assert_eq!(settings, Ok(with(change)), "{} over {other}", names[0]);
        }
    }
    let threads = [("GPUFILE_NUM_THREADS", "3"), ("KVIKIO_NTHREADS", "4"), ("KVIKIO_NUM_THREADS", "5")];
    assert_eq!(from(&threads).unwrap().threads, 3);
}

#[test]
fn two_kvikio_names_must_agree() {
    let both = |one, two| from(&[("KVIKIO_NTHREADS", one), ("KVIKIO_NUM_THREADS", two)]);
    assert_eq!(both("8", " 8").unwrap().threads, 8);
    let default = Settings::default().threads.to_string();
    // The first differs from the default, and then the second.
    for (one, two) in [("77", "78"), ("77", &default), (&default, "77")] {
        let error = both(one, two).unwrap_err();
        assert_eq!(
            error,
            SettingsError::Conflict {
                variables: ["KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"],
                values: [one.into(), two.into()],
            }
        );
        let text = error.to_string();
        assert!(text.contains(&format!("KVIKIO_NTHREADS ({one:?})")), "{text}");
        assert!(text.contains(&format!("KVIKIO_NUM_THREADS ({two:?})")), "{text}");
    }
    assert!(matches!(both("8", "x"), Err(SettingsError::Invalid { variable: "KVIKIO_NUM_THREADS", .. })));
}

#[test]
fn bad_value_errors_name_variable_and_accepted_values() {
    for (name, variable) in names() {
        let mut values = vec!["", "nonsense", "-1", "1.5", "2 2", "99999999999999999999999"];
        match variable.accepted {
            SWITCH | DIRECT => values.push("2"),
            SIZE => values.extend(["0", "0k", "4MB", "16777216T", "on"]),
            _ => {}
        }
        if variable.variable == "GPUFILE_NUM_THREADS" {
            values.extend(["0", "4k", "auto"]);
        }
        for value in values {
            let error = from(&[(name, value)]).unwrap_err();
            let accepted = variable.accepted;
            assert_eq!(error, SettingsError::Invalid { variable: name, value: value.into(), accepted });
            let text = error.to_string();
            assert!(text.contains(&format!("{name} is {value:?}: expected {accepted}")), "{text}");
        }
    }
}

#[test]
fn values_must_be_unicode() {
    for (name, variable) in names() {
        let value = OsString::from_vec(b"4\xff".to_vec());
        let error = Settings::from_lookup(&|asked| (asked == name).then(|| value.clone())).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(r"4\xFF"), "{text}");
        let accepted = variable.accepted;
        assert_eq!(error, SettingsError::Invalid { variable: name, value, accepted });
    }
}

#[test]
fn values_suggested_by_errors_are_accepted() {
    assert!(
        SWITCH.split([',', ' ']).filter(|word| !["", "or"].contains(word)).all(|word| switch(word).is_some())
    );
    assert!(["65536", "64KiB", "4M"].iter().all(|text| SIZE.contains(text) && size(text).is_some()));
}
