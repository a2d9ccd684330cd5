use gpufile::Engine;
use testkit::alone;

#[test]
fn the_default_engine_is_set_once_before_use() {
    alone(|| {
        assert!(Engine::set_global(Engine::builder().threads(3).build()).is_ok());
        assert_eq!(Engine::global().settings().threads, 3);
        let another = Engine::set_global(Engine::builder().threads(5).build()).unwrap_err();
        assert_eq!((another.settings().threads, Engine::global().settings().threads), (5, 3));
    });
}
